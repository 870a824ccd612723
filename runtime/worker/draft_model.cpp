#include "runtime/worker/draft_model.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "runtime/models/draft_head_config.hpp"
#include "runtime/models/layers.hpp"

namespace troupe {
namespace {

/// Behind a window or a chunk blocks are freed, and then belong to others.
bool keeps_all_blocks(const Model& model, const WorkerOptions& options) {
  return std::ranges::all_of(
      model.kv_cache_specs(options.block_size, DType::kF32), [](const LayerCacheSpec& layer) {
        return layer.spec.is<FullAttentionSpec>() || layer.spec.is<MlaSpec>();
      });
}

}  // namespace

Result<LoadedDraftHead> DraftModel::load_layers(const WorkerOptions& options, Device& device,
                                                LoadedModel& target, bool only_checks,
                                                const LoadProgressCallback& progress) {
  const SpeculativeDecoding& speculative = options.speculative;
  const std::string& folder =
      speculative.draft_model.empty() ? options.model : speculative.draft_model;
  const std::string name = (speculative.has_draft_head() ? "draft head " : "draft model ") + folder;
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(name + ": " + what, "speculative-config");
  };
  const std::int64_t max_model_len = target.model->max_model_len();
  if (const std::int32_t limit = speculative.draft_max_model_len;
      limit != 0 && limit < max_model_len)
    return refuse("its max_model_len is " + std::to_string(limit) +
                  ", it must be at least the model's, " + std::to_string(max_model_len));
  ModelLoadOptions load{.dtype = options.dtype,
                        .quantization = speculative.draft_quantization,
                        .packed_weights_dir = options.packed_weights_dir,
                        .max_model_len = max_model_len,
                        .parallel = options.parallel,
                        .only_checks = only_checks};
  LoadedDraftHead loaded;
  Result<void> done;
  if (speculative.has_draft_head()) {
    auto head = load_draft_head(speculative.draft_head, folder, target, device, load, progress);
    done = head.ok() ? Result<void>() : head.error();
    if (head.ok()) loaded = std::move(head).value();
  } else {
    // The last stage drafts, with layers of one stage.
    load.parallel.rank = options.parallel.tensor_rank();
    load.parallel.pipeline_parallel_size = 1;
    load.parallel.expert_parallel = false;  // a draft model may have no experts
    auto model = load_model(folder, device, load, progress);
    done = model.ok() ? Result<void>() : model.error();
    if (model.ok()) loaded.loaded = std::move(model).value();
  }
  if (!done.ok()) return Error{done.error().code, name + ": " + done.error().message};
  Model& model = *loaded.loaded.model;
  for (const LayerCacheSpec& layer : model.kv_cache_specs(options.block_size, DType::kF32))
    if (layer.spec.is<MambaSpec>())
      return Error{ErrorCode::kUnsupported,
                   name + ": " + loaded.loaded.config.architecture +
                       " keeps states behind its tokens, which guesses cannot be taken back from",
                   "speculative-config"};
  if (loaded.head == nullptr && model.vocab_size() != target.model->vocab_size())
    return refuse("its vocabulary has " + std::to_string(model.vocab_size()) +
                  " tokens, the model's has " + std::to_string(target.model->vocab_size()));
  return loaded;
}

Result<void> DraftModel::check(const WorkerOptions& options, Device& device, LoadedModel& target) {
  const auto layers = load_layers(options, device, target, /*only_checks=*/true, {});
  return layers.ok() ? Result<void>() : layers.error();
}

Result<std::unique_ptr<DraftModel>> DraftModel::load(const WorkerOptions& options, Device& device,
                                                     LoadedModel& target,
                                                     const LoadProgressCallback& progress) {
  ASSIGN_OR_RETURN(LoadedDraftHead loaded,
                   load_layers(options, device, target, /*only_checks=*/false, progress));
  if (loaded.head != nullptr && loaded.head->takes_layer_inputs())
    RETURN_IF_ERROR(target.model->keep_layer_inputs(loaded.head->input_layers()));
  std::unique_ptr<DraftModel> draft(
      new DraftModel(options, device, std::move(loaded.loaded), loaded.head));
  RETURN_IF_ERROR(draft->reserve_memory(target.model->vocab_size()));
  return draft;
}

Result<void> DraftModel::prepare_stage(const WorkerOptions& options, LoadedModel& target) {
  const SpeculativeDecoding& speculative = options.speculative;
  if (!speculative.has_draft_head()) return {};
  const std::string& folder =
      speculative.draft_model.empty() ? options.model : speculative.draft_model;
  const auto config = load_draft_head_config(speculative.draft_head, folder, target.config);
  if (!config.ok())
    return Error{config.error().code, "draft head " + folder + ": " + config.error().message};
  if (config->input_layers.empty()) return {};
  return target.model->keep_layer_inputs(config->input_layers);
}

Result<void> DraftModel::reserve_memory(std::int64_t vocab_size) {
  Model& model = *loaded_.model;
  // A step's own tokens, and of each of its requests the one that it has got, and those before.
  if (head_ == nullptr && keeps_all_blocks(model, options_)) max_behind_ = kMaxBehind;
  max_tokens_ = options_.max_num_batched_tokens + (1 + max_behind_) * max_num_drafts();
  RETURN_IF_ERROR(
      model.reserve({.max_num_tokens = max_tokens_, .max_num_logit_rows = LogitRows::kMaxRows}));
  ASSIGN_OR_RETURN(hidden_, allocate_floats(device_, max_num_drafts(), model.hidden_size(),
                                            "the draft model's hidden states"));
  if (head_ != nullptr) {
    const std::int64_t columns = std::max(head_->target_state_size(), head_->hidden_size());
    ASSIGN_OR_RETURN(states_,
                     allocate_floats(device_, max_tokens_, columns, "the draft head's states"));
    if (!head_->token_ids().empty()) whole_logits_.resize(static_cast<std::size_t>(vocab_size));
  }
  return row_logits_.reserve(device_, model.vocab_size());
}

void DraftModel::set_cache(std::vector<LayerKvCache> caches, const BlockTables& tables,
                           bool are_loaded) {
  caches_ = std::move(caches);
  tables_ = &tables;
  batch_.emplace(tables);
  blocks_.emplace(tables, caches_);
  are_loaded_ = are_loaded;
}

void DraftModel::propose(std::span<const InputBatch::Row> rows, std::int32_t num_drafts,
                         std::int32_t max_rows, ConstMatrix states, Communicator* peers,
                         Communicator* model_peers, ModelRunnerOutput& output) {
  const auto begin = std::chrono::steady_clock::now();
  DraftReport& report = output.drafting;
  peers_ = peers;
  model_peers_ = model_peers;
  add_certain_tokens(rows, num_drafts, max_rows, states, report);
  forward(/*takes_target_states=*/true, report);
  while (!drafts_.empty()) {
    draw(output);
    if (drafts_.empty()) break;
    add_guesses();
    forward(/*takes_target_states=*/false, report);
  }
  if (report.num_passes > 0)
    report.us = std::chrono::duration_cast<std::chrono::microseconds>(
                    std::chrono::steady_clock::now() - begin)
                    .count();
}

std::int64_t DraftModel::num_wanted(const InputBatch::Row& row, std::int32_t num_drafts,
                                    std::int64_t num_slots) const {
  const WorkerRequest& request = *row.request;
  if (!row.samples || request.failed) return 0;
  const auto num_known = static_cast<std::int64_t>(request.token_ids.size());
  // The last guess is computed in the next step only, and a head is one token behind.
  const std::int64_t num_free = num_slots - num_known + (head_ != nullptr ? 2 : 1);
  return std::min({std::int64_t{num_drafts}, loaded_.model->max_model_len() - num_known, num_free});
}

void DraftModel::add_certain_tokens(std::span<const InputBatch::Row> rows, std::int32_t num_drafts,
                                    std::int32_t max_rows, ConstMatrix states,
                                    DraftReport& report) {
  batch_->clear();
  drafts_.clear();
  report.least_behind = std::numeric_limits<std::int32_t>::max();  // it never catches up
  std::int64_t num_left = std::min<std::int64_t>(max_rows, max_tokens_);
  WorkerRequest* part = nullptr;  // the first request that does not fit whole
  std::int32_t part_end = 0;
  // A head takes the token behind the one whose state it has.
  const std::int32_t shift = head_ != nullptr ? 1 : 0;
  for (const InputBatch::Row& row : rows) {
    WorkerRequest& request = *row.request;
    if (request.first_behind == WorkerRequest::kUnknownBehind)
      request.first_behind =
          are_loaded_ ? WorkerRequest::kNoneBehind
                      : blocks_->first_missing(request.table_row, request.num_computed_tokens);
    const std::int32_t begin = std::min(request.num_computed_tokens, request.first_behind);
    const auto num_known = static_cast<std::int32_t>(request.token_ids.size());
    const std::int64_t num_slots = tables_->num_slots(request.table_row);
    // What has been sampled last a model computes as well: with the request's next step, too, but
    // then for certain.
    const bool has_sampled = row.samples && !request.failed;
    const std::int32_t step_end =
        has_sampled ? num_known
                    : std::min(num_known, request.num_computed_tokens + row.num_tokens + shift);
    const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(num_slots, step_end - shift));
    const std::int64_t wanted = num_wanted(row, num_drafts, num_slots);
    const std::int32_t count = std::max(end - begin, 0);
    const bool fits = count == 0 || (head_ != nullptr ? max_rows > 0 : count <= num_left);
    const bool waits = !fits || (num_drafts == 0 && count <= max_behind_);
    const bool lacks_tokens = !fits || begin < request.num_computed_tokens;
    if (lacks_tokens && max_behind_ == 0 && !std::exchange(request.is_undrafted, true))
      report.undrafted.push_back(request.id);
    if (waits || request.is_undrafted)
      blocks_->skip(request.table_row, request.num_computed_tokens, end);
    if (request.is_undrafted) continue;
    if (count > 0) request.first_behind = waits ? begin : WorkerRequest::kNoneBehind;
    report.least_behind = std::min(report.least_behind, waits ? count : 0);
    if (!fits && part == nullptr) {
      part = &request;
      part_end = end;
    }
    if (count == 0 || waits) continue;
    num_left -= count;
    blocks_->add(request.table_row, begin, end);
    if (head_ != nullptr) {
      CHECK(row.num_outputs == row.num_tokens && end - begin <= row.num_tokens, row.num_outputs,
            row.num_tokens, begin, end);
      copy_states({states.row(row.first_output), end - begin, states.num_cols, states.row_stride},
                  batch_->num_tokens());
    }
    batch_->add(std::span(request.token_ids)
                    .subspan(static_cast<std::size_t>(begin + shift),
                             static_cast<std::size_t>(end - begin)),
                begin, request.table_row, wanted > 0 ? 1 : 0);
    if (wanted <= 0) continue;
    drafts_.push_back({.request = &request,
                       .sampling = request.sampling,
                       .num_wanted = static_cast<std::size_t>(wanted),
                       .token_ids = {},
                       .row = std::ssize(drafts_)});
  }
  if (part != nullptr && num_left > 0) {
    const std::int32_t begin = part->first_behind;
    const auto count =
        static_cast<std::int32_t>(std::min<std::int64_t>(num_left, part_end - begin));
    batch_->add(std::span(part->token_ids)
                    .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                begin, part->table_row, 0);
    blocks_->add(part->table_row, begin, begin + count);
    part->first_behind += count;
  }
}

void DraftModel::add_guesses() {
  batch_->clear();
  std::int64_t row = 0;
  for (Draft& draft : drafts_) {
    const std::size_t num_tokens = draft.request->token_ids.size() + draft.token_ids.size();
    const auto position = static_cast<std::int32_t>(num_tokens) - (head_ != nullptr ? 2 : 1);
    batch_->add(std::span(draft.token_ids).last(1), position, draft.request->table_row, 1);
    if (head_ != nullptr) copy_states({step_hidden_.row(draft.row), 1, step_hidden_.num_cols}, row);
    draft.row = row++;
  }
}

void DraftModel::copy_states(ConstMatrix states, std::int64_t to) {
  device_.copy(floats(states_) + to * states.num_cols, states.data,
               static_cast<std::size_t>(states.num_rows * states.num_cols) * sizeof(float));
}

void DraftModel::forward(bool takes_target_states, DraftReport& report) {
  if (batch_->num_tokens() == 0) return;
  ++report.num_passes;
  report.num_rows += static_cast<std::int32_t>(batch_->num_tokens());
  CHECK(batch_->num_outputs() <= max_num_drafts(), batch_->num_outputs(), max_num_drafts());
  if (head_ != nullptr) {
    const std::int64_t columns =
        takes_target_states ? head_->target_state_size() : head_->hidden_size();
    head_->set_states({floats(states_), batch_->num_tokens(), columns}, takes_target_states);
  }
  step_hidden_ = Matrix(floats(hidden_), batch_->num_outputs(), loaded_.model->hidden_size());
  loaded_.model->forward(batch_->view(), caches_, model_peers_, step_hidden_);
}

std::span<float> DraftModel::whole_vocabulary(std::span<float> logits) {
  if (whole_logits_.empty()) return logits;
  std::ranges::fill(whole_logits_, -std::numeric_limits<float>::infinity());
  const std::span<const TokenId> ids = head_->token_ids();
  for (std::size_t i = 0; i < ids.size(); ++i)
    whole_logits_[static_cast<std::size_t>(ids[i])] = logits[i];
  return whole_logits_;
}

bool DraftModel::draw_tokens(std::span<const Draft> drafts, ConstMatrix hidden) {
  Model& model = *loaded_.model;
  const Matrix logits = row_logits_.compute(model, hidden, model_peers_);
  drawn_.assign(drafts.size(), kNoToken);
  if (options_.parallel.rank == options_.parallel.output_rank()) {
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      const Result<TokenId> token =
          sampler_.draw(whole_vocabulary({logits.row(static_cast<std::int64_t>(i)),
                                          static_cast<std::size_t>(model.vocab_size())}),
                        drafts[i].sampling);
      if (token.ok()) drawn_[i] = *token;
    }
  }
  return peers_ == nullptr || share_drawn();
}

bool DraftModel::share_drawn() {
  const std::int32_t output_rank = options_.parallel.output_rank();
  const auto drawn = std::as_writable_bytes(std::span(drawn_));
  if (options_.parallel.rank != output_rank) return peers_->recv(drawn, output_rank);
  for (std::int32_t peer = 1; peer < peers_->group_size(); ++peer)
    peers_->send(drawn, output_rank + peer);
  return true;
}

void DraftModel::draw(ModelRunnerOutput& output) {
  constexpr auto kRowsAtOnce = static_cast<std::size_t>(LogitRows::kMaxRows);
  for (std::size_t begin = 0; begin < drafts_.size(); begin += kRowsAtOnce) {
    const auto drafts =
        std::span(drafts_).subspan(begin, std::min(kRowsAtOnce, drafts_.size() - begin));
    const ConstMatrix hidden(step_hidden_.row(static_cast<std::int64_t>(begin)), std::ssize(drafts),
                             step_hidden_.num_cols);
    if (!draw_tokens(drafts, hidden)) return drafts_.clear();
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      Draft& draft = drafts[i];
      if (drawn_[i] == kNoToken) {
        draft.num_wanted = draft.token_ids.size();
        continue;
      }
      draft.token_ids.push_back(drawn_[i]);
      draft.sampling.append(drawn_[i]);
    }
  }
  const auto has_enough = [](const Draft& draft) {
    return draft.token_ids.size() >= draft.num_wanted;
  };
  for (const Draft& draft : drafts_)
    if (has_enough(draft) && !draft.token_ids.empty())
      output.draft_token_ids.emplace_back(draft.request->id, draft.token_ids);
  std::erase_if(drafts_, has_enough);
}

}  // namespace troupe
