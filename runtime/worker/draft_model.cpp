#include "runtime/worker/draft_model.hpp"

#include <algorithm>
#include <string>

#include "runtime/models/layers.hpp"

namespace troupe {
Result<std::unique_ptr<DraftModel>> DraftModel::load(const WorkerOptions& options, Device& device,
                                                     std::int64_t vocab_size,
                                                     std::int64_t max_model_len,
                                                     const LoadProgressCallback& progress) {
  const std::string& name = options.speculative.draft_model;
  const auto refuse = [&](const std::string& what) {
    return invalid_argument("draft model " + name + ": " + what, "speculative-config");
  };
  if (const std::int32_t limit = options.speculative.draft_max_model_len;
      limit != 0 && limit < max_model_len)
    return refuse("its max_model_len is " + std::to_string(limit) +
                  ", it must be at least the model's, " + std::to_string(max_model_len));
  ParallelConfig parallel = options.parallel;
  parallel.expert_parallel = false;  // a draft model may have no experts
  auto loaded = load_model(name, device,
                           {.dtype = options.dtype,
                            .quantization = options.speculative.draft_quantization,
                            .packed_weights_dir = options.packed_weights_dir,
                            .max_model_len = max_model_len,
                            .parallel = parallel},
                           progress);
  if (!loaded.ok())
    return Error{loaded.error().code, "draft model " + name + ": " + loaded.error().message};
  const Model& model = *loaded->model;
  if (model.vocab_size() != vocab_size)
    return refuse("its vocabulary has " + std::to_string(model.vocab_size()) +
                  " tokens, the model's has " + std::to_string(vocab_size));
  // What it has read of drafts that are not accepted cannot be taken back.
  for (const LayerCacheSpec& layer : model.kv_cache_specs(options.block_size, loaded->dtype))
    if (layer.spec.is<MambaSpec>())
      return Error{ErrorCode::kUnsupported,
                   "draft model " + name +
                       ": it has layers with recurrent states, which only the "
                       "model itself may have",
                   "speculative-config"};
  std::unique_ptr<DraftModel> draft(new DraftModel(options, device, std::move(loaded).value()));
  RETURN_IF_ERROR(draft->reserve_memory());
  return draft;
}

Result<void> DraftModel::reserve_memory() {
  Model& model = *loaded_.model;
  // A step's own tokens, and behind them the one that each of its requests has got.
  const std::int64_t max_tokens = std::int64_t{options_.max_num_batched_tokens} + max_num_drafts();
  RETURN_IF_ERROR(
      model.reserve({.max_num_tokens = max_tokens, .max_num_logit_rows = LogitRows::kMaxRows}));
  ASSIGN_OR_RETURN(hidden_, allocate_floats(device_, max_num_drafts(), model.hidden_size(),
                                            "the draft model's hidden states"));
  return row_logits_.reserve(device_, model.vocab_size());
}

void DraftModel::set_cache(std::vector<LayerKvCache> caches, const BlockTables& tables) {
  caches_ = std::move(caches);
  tables_ = &tables;
  batch_.emplace(tables);
}

void DraftModel::propose(std::span<const InputBatch::Row> rows, Communicator* peers,
                         Communicator* model_peers, ModelRunnerOutput& output) {
  peers_ = peers;
  model_peers_ = model_peers;
  add_certain_tokens(rows);
  forward();
  while (!drafts_.empty()) {
    draw(output);
    if (drafts_.empty()) break;
    batch_->clear();
    for (Draft& draft : drafts_) {
      const std::size_t num_tokens = draft.request->token_ids.size() + draft.token_ids.size();
      batch_->add(std::span(draft.token_ids).last(1), static_cast<std::int32_t>(num_tokens - 1),
                  draft.request->table_row, 1);
    }
    forward();
  }
}

void DraftModel::add_certain_tokens(std::span<const InputBatch::Row> rows) {
  batch_->clear();
  drafts_.clear();
  for (const InputBatch::Row& row : rows) {
    const WorkerRequest& request = *row.request;
    const std::int32_t begin = request.num_computed_tokens;
    const auto num_known = static_cast<std::int32_t>(request.token_ids.size());
    const std::int64_t num_slots = tables_->num_slots(request.table_row);
    const bool drafts = row.samples && !request.failed;
    // What has been sampled last is computed with the request's next step, too: then for certain.
    const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(
        {num_slots, num_known, drafts ? num_known : begin + row.num_tokens}));
    if (begin >= end) continue;
    const std::int64_t num_wanted =
        !drafts ? 0
                : std::min({std::int64_t{options_.speculative.num_draft_tokens},
                            loaded_.model->max_model_len() - num_known, num_slots - num_known + 1});
    batch_->add(
        std::span(request.token_ids)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        begin, request.table_row, num_wanted > 0 ? 1 : 0);
    if (num_wanted <= 0) continue;
    drafts_.push_back({.request = &request,
                       .sampling = request.sampling,
                       .num_wanted = static_cast<std::size_t>(num_wanted),
                       .token_ids = {}});
  }
}

void DraftModel::forward() {
  if (batch_->num_tokens() == 0) return;
  CHECK(batch_->num_outputs() <= max_num_drafts(), batch_->num_outputs(), max_num_drafts());
  step_hidden_ = Matrix(floats(hidden_), batch_->num_outputs(), loaded_.model->hidden_size());
  loaded_.model->forward(batch_->view(), caches_, model_peers_, step_hidden_);
}

bool DraftModel::draw_tokens(std::span<const Draft> drafts, ConstMatrix hidden) {
  Model& model = *loaded_.model;
  const Matrix logits = row_logits_.compute(model, hidden, model_peers_);
  drawn_.assign(drafts.size(), kNoToken);
  const std::int32_t output_rank = options_.parallel.output_rank();
  if (options_.parallel.rank == output_rank) {
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      const Result<TokenId> token = sampler_.draw(
          {logits.row(static_cast<std::int64_t>(i)), static_cast<std::size_t>(model.vocab_size())},
          drafts[i].sampling);
      if (token.ok()) drawn_[i] = *token;
    }
  }
  return peers_ == nullptr ||
         peers_->broadcast(std::as_writable_bytes(std::span(drawn_)), output_rank);
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
