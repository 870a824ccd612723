// What a ModelRunner does with the hidden states of a step: logits, samples, scores, drafts.
#include "runtime/worker/model_runner.hpp"

#include <algorithm>

#include "runtime/base/log.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/worker/logits_processors/token_bitmask.hpp"

namespace troupe {
namespace {

/// One error per request: the first.
void add_error(RequestId id, const Error& error, ModelRunnerOutput& output) {
  for (const auto& [failed, earlier] : output.request_errors)
    if (failed == id) return;
  output.request_errors.emplace_back(id, error);
  log_warning("request failed in its step", kv("request", id), kv("error", error.message));
}

/// What counts of the output of a rank that is not the output rank.
ModelRunnerOutput reports_of(ModelRunnerOutput output) {
  return {
      .step = output.step, .request_errors = std::move(output.request_errors), .rank = output.rank};
}

}  // namespace

void ModelRunner::take_samples(const SchedulerOutput& step) {
  std::uint64_t num_needed = 0;
  for (const std::vector<RequestId>* ids :
       {&step.scheduled_ids, &step.finished_ids, &step.preempted_ids}) {
    for (const RequestId id : *ids)
      if (const WorkerRequest* request = batch_->find(id))
        num_needed = std::max(num_needed, request->samples_index);
  }
  while (num_samples_taken_ < num_needed && take_oldest_samples()) {
  }
}

void ModelRunner::take_all_samples() {
  while (!awaited_samples_.empty() && take_oldest_samples()) {
  }
}

bool ModelRunner::take_oldest_samples() {
  const std::vector<AwaitedSamples>& awaited = awaited_samples_.front();
  std::size_t num_slots = 0;
  for (const AwaitedSamples& request : awaited) num_slots += request.num_slots;
  step_samples_.resize(num_slots);
  if (!peers_->recv(std::as_writable_bytes(std::span(step_samples_)),
                    options_.parallel.output_rank()))
    return false;
  auto slots = std::span<const TokenId>(step_samples_);
  for (const AwaitedSamples& expected : awaited) {
    const auto tokens = slots.first(expected.num_slots);
    slots = slots.subspan(expected.num_slots);
    WorkerRequest* request = batch_->find(expected.id);
    if (request == nullptr) continue;
    for (std::size_t i = 0; i < tokens.size() && (i == 0 || tokens[i] != kNoToken); ++i)
      InputBatch::append_token(*request, tokens[i]);
  }
  awaited_samples_.pop_front();
  ++num_samples_taken_;
  return true;
}

/// The output rank's tokens of this step go to all others, who expect them.
void ModelRunner::send_samples(std::span<const InputBatch::Row> rows) {
  std::vector<AwaitedSamples> awaited;
  step_samples_.clear();
  for (const InputBatch::Row& row : rows) {
    if (!row.samples) continue;
    const std::size_t num_slots = 1 + row.drafts.size();
    awaited.push_back({row.request->id, num_slots});
    if (!is_output_rank()) continue;
    const auto num_known =
        static_cast<std::size_t>(row.request->num_computed_tokens + row.num_tokens) -
        row.drafts.size();
    const auto tokens = std::span<const TokenId>(row.request->token_ids).subspan(num_known);
    CHECK(tokens.size() <= num_slots, tokens.size(), num_slots);
    step_samples_.insert(step_samples_.end(), tokens.begin(), tokens.end());
    step_samples_.resize(step_samples_.size() + num_slots - tokens.size(), kNoToken);
  }
  if (awaited.empty()) return;
  if (!is_output_rank()) {
    awaited_samples_.push_back(std::move(awaited));
    for (const InputBatch::Row& row : rows)
      if (row.samples) row.request->samples_index = num_samples_taken_ + awaited_samples_.size();
    return;
  }
  peers_->broadcast(std::as_writable_bytes(std::span(step_samples_)), peers_->rank());
}

Result<ModelRunnerOutput> ModelRunner::sample(const GrammarOutput& grammar) {
  ModelRunnerOutput output;
  output.step = grammar.step;
  output.rank = options_.parallel.rank;
  const std::span<const InputBatch::Row> rows = batch_->rows();
  if (rows.empty()) return output;
  for (const auto& [id, error] : adapter_errors_) add_error(id, error, output);
  const bool has_peers = peers_ != nullptr;
  if (options_.parallel.is_last_stage()) {
    for (const InputBatch::Row& row : rows) output.ids.push_back(row.request->id);
  }
  if (pooler_.type != PoolingType::kNone) {
    if (!is_output_rank()) return reports_of(std::move(output));
    output.num_sampled.assign(rows.size(), 0);
    RETURN_IF_ERROR(pool_texts(rows, output));
    return output;
  }
  if (options_.parallel.is_last_stage()) {
    score_and_sample(rows, grammar, output);
    if ((proposer_ || suffix_proposer_) && is_output_rank()) draft_tokens(rows, output);
  }
  if (has_peers) {
    send_samples(rows);
    RETURN_IF_ERROR(peers_->status());
  }
  if (draft_model_ != nullptr) {
    // What has been sampled is computed at once, by all ranks: none of them waits for its next
    // step.
    take_all_samples();
    if (has_peers) RETURN_IF_ERROR(peers_->status());
    const ConstMatrix states = has_draft_head() && draft_model_->head()->takes_layer_inputs()
                                   ? loaded_.model->kept_layer_inputs()
                                   : step_hidden_;
    draft_model_->propose(rows, num_drafts_to_make_, max_draft_rows_, states, peers_.get(),
                          model_peers(), output);
    RETURN_IF_ERROR(step_status());
    // The first stage has placeholders where the Scheduler has: they are no drafts on any stage.
    if (options_.parallel.pipeline_parallel_size == 1)
      for (const auto& [id, drafts] : output.draft_token_ids)
        batch_->find(id)->next_drafts = drafts;
  }
  if (!is_output_rank()) return reports_of(std::move(output));
  return output;
}

std::span<float> ModelRunner::logits_of(std::int32_t output) {
  Model& model = *loaded_.model;
  CHECK(output >= first_logits_, output, first_logits_);
  if (output >= first_logits_ + step_logits_.num_rows) {
    std::int64_t num_rows = 1;
    while (num_rows < std::min(std::int64_t{LogitRows::kMaxRows}, step_hidden_.num_rows - output) &&
           needed_logits_[static_cast<std::size_t>(output + num_rows)])
      ++num_rows;
    first_logits_ = output;
    step_logits_ = row_logits_.compute(
        model, ConstMatrix(step_hidden_.row(output), num_rows, model.hidden_size()), model_peers());
    if (is_output_rank()) draw_tokens();
  }
  return {step_logits_.row(output - first_logits_), static_cast<std::size_t>(model.vocab_size())};
}

void ModelRunner::draw_tokens() {
  std::vector<std::int32_t> outputs;
  for (std::int32_t output = first_logits_; output < first_logits_ + step_logits_.num_rows;
       ++output)
    if (drawn_from_[static_cast<std::size_t>(output)] != nullptr) outputs.push_back(output);
  const auto num_threads =
      std::min(static_cast<std::size_t>(device_->pool().num_threads()), outputs.size());
  samplers_.resize(std::max(samplers_.size(), num_threads));
  device_->pool().parallel_for(static_cast<std::int64_t>(num_threads), [&](std::int64_t thread) {
    Sampler& sampler = samplers_[static_cast<std::size_t>(thread)];
    for (auto i = static_cast<std::size_t>(thread); i < outputs.size(); i += num_threads) {
      const auto output = static_cast<std::size_t>(outputs[i]);
      const std::span<float> logits(step_logits_.row(outputs[i] - first_logits_),
                                    static_cast<std::size_t>(step_logits_.num_cols));
      drawn_[output] = sampler.draw(logits, *drawn_from_[output]);
    }
  });
}

void ModelRunner::take_bitmasks(std::span<const InputBatch::Row> rows,
                                const GrammarOutput& grammar) {
  const auto width = static_cast<std::size_t>(grammar.words_per_row);
  CHECK(grammar.ids.empty() ||
            width == words_per_bitmask_row(static_cast<std::size_t>(loaded_.model->vocab_size())),
        width, loaded_.model->vocab_size());
  CHECK(grammar.num_rows.size() == grammar.ids.size(), grammar.num_rows.size(), grammar.ids.size());
  bitmasks_.assign(rows.size(), {});
  std::size_t num_masked = 0;  // of grammar.ids, which are in the order of the rows
  std::span<const std::int32_t> left = grammar.bitmask;
  for (std::size_t i = 0; i < rows.size() && num_masked < grammar.ids.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    if (grammar.ids[num_masked] != row.request->id) continue;
    const std::int32_t num_rows = grammar.num_rows[num_masked++];
    CHECK(num_rows == 1 + std::ssize(row.drafts), value(row.request->id), num_rows,
          row.drafts.size());
    const std::size_t size = static_cast<std::size_t>(num_rows) * width;
    CHECK(size <= left.size(), value(row.request->id), size, left.size());
    bitmasks_[i] = left.first(size);
    left = left.subspan(size);
  }
  CHECK(num_masked == grammar.ids.size() && left.empty(), num_masked, grammar.ids.size(),
        left.size());
}

void ModelRunner::find_needed_logits(std::span<const InputBatch::Row> rows) {
  const auto num_outputs = static_cast<std::size_t>(step_hidden_.num_rows);
  needed_logits_.assign(num_outputs, false);
  drawn_from_.assign(num_outputs, nullptr);
  drawn_.assign(num_outputs, std::nullopt);
  const auto need = [&](std::int64_t begin, std::int64_t count) {
    std::fill_n(needed_logits_.begin() + begin, count, true);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    const WorkerRequest& request = *row.request;
    need(row.first_output, row.num_scored);
    const std::int64_t num_sampling = row.samples ? 1 + std::ssize(row.drafts) : 0;
    const std::int64_t first = row.first_output + row.num_outputs - num_sampling;
    need(first, num_sampling);
    const bool is_scored = first < row.first_output + row.num_scored;
    if (num_sampling == 1 && !is_scored && bitmasks_[i].empty() &&
        !request.sampling.params().logprobs && !adapter_errors_.contains(request.id))
      drawn_from_[static_cast<std::size_t>(first)] = &request.sampling;
  }
}

void ModelRunner::score_and_sample(std::span<const InputBatch::Row> rows,
                                   const GrammarOutput& grammar, ModelRunnerOutput& output) {
  const bool any_logprobs = std::ranges::any_of(rows, [](const InputBatch::Row& row) {
    return row.request->sampling.params().logprobs.has_value();
  });
  take_bitmasks(rows, grammar);
  find_needed_logits(rows);
  output.num_sampled.assign(rows.size(), 0);
  if (any_logprobs) output.num_logprob_rows.assign(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    WorkerRequest& request = *row.request;
    if (request.prompt_logprobs) {
      const Result<void> scored = score_prompt(row, request.prompt_logprobs->rows);
      if (!scored.ok()) add_error(request.id, scored.error(), output);
    }
    if (!row.samples) continue;
    if (request.prompt_logprobs) {
      output.prompt_logprobs.push_back(std::move(*request.prompt_logprobs));
      request.prompt_logprobs.reset();
    }
    output.num_sampled[i] = sample_row(row, bitmasks_[i], output);
    if (request.sampling.params().logprobs) output.num_logprob_rows[i] = output.num_sampled[i];
  }
}

/// Of the rows that end with their text.
Result<void> ModelRunner::pool_texts(std::span<const InputBatch::Row> rows,
                                     ModelRunnerOutput& output) {
  ConstMatrix hidden = step_hidden_;
  std::vector<float> on_host;
  if (!device_->is_host()) {
    on_host.resize(static_cast<std::size_t>(step_hidden_.num_rows * step_hidden_.num_cols));
    device_->copy_to_host(on_host.data(), step_hidden_.data, on_host.size() * sizeof(float));
    RETURN_IF_ERROR(device_->synchronize());
    hidden = {on_host.data(), step_hidden_.num_rows, step_hidden_.num_cols};
  }
  for (const InputBatch::Row& row : rows) {
    if (!row.samples || adapter_errors_.contains(row.request->id)) continue;
    const ConstMatrix states(hidden.row(row.first_output), row.num_outputs, hidden.num_cols);
    output.pooling_outputs.emplace_back(row.request->id, loaded_.model->pool(pooler_.type, states));
  }
  return {};
}

/// Appends what this step's tokens say of the prompt tokens behind them.
Result<void> ModelRunner::score_prompt(const InputBatch::Row& row, LogprobRows& scores) {
  const WorkerRequest& request = *row.request;
  Result<void> done;
  for (std::int32_t i = 0; i < row.num_scored; ++i) {
    // All ranks compute all logits, also behind a token that cannot be scored.
    const std::span<const float> logits = logits_of(row.first_output + i);
    if (!is_output_rank() || !done.ok()) continue;
    const std::int32_t next = request.num_computed_tokens + i + 1;
    done =
        samplers_.front().append_logprobs(logits, request.token_ids[static_cast<std::size_t>(next)],
                                          *request.sampling.params().prompt_logprobs, scores);
  }
  return done;
}

/// Draws the row's next token, and one more behind each draft that has come true. How many.
/// `bitmask`: what a grammar allows in each place, one row behind the other; empty: anything.
std::int32_t ModelRunner::sample_row(const InputBatch::Row& row,
                                     std::span<const std::int32_t> bitmask,
                                     ModelRunnerOutput& output) {
  WorkerRequest& request = *row.request;
  const auto num_drafts = static_cast<std::int32_t>(row.drafts.size());
  const std::int32_t first = row.first_output + row.num_outputs - 1 - num_drafts;
  std::int32_t num_sampled = 0;
  bool ended = false;  // the row has got its last token of this step
  for (std::int32_t i = 0; i <= num_drafts; ++i) {
    // All ranks compute all logits: only the output rank knows which drafts come true.
    const std::span<float> logits = logits_of(first + i);
    if (!is_output_rank() || ended) continue;
    if (!bitmask.empty()) {
      const std::size_t width = words_per_bitmask_row(logits.size());
      apply_token_bitmask(bitmask.subspan(static_cast<std::size_t>(i) * width, width), logits);
    }
    const auto no_adapter = adapter_errors_.find(request.id);
    const std::optional<Result<TokenId>>& drawn = drawn_[static_cast<std::size_t>(first + i)];
    const Result<TokenId> sampled =
        no_adapter != adapter_errors_.end()
            ? Result<TokenId>(no_adapter->second)
            : (drawn ? *drawn
                     : samplers_.front().sample(logits, request.sampling, output.logprobs));
    if (!sampled.ok()) {
      // What came before it stands; alone, it would fail in the next step.
      ended = true;
      if (i > 0) continue;
      InputBatch::append_token(request, kNoToken);
      add_error(request.id, sampled.error(), output);
      continue;
    }
    InputBatch::append_token(request, *sampled);
    output.sampled_token_ids.push_back(*sampled);
    ++num_sampled;
    ended = i == num_drafts || row.drafts[static_cast<std::size_t>(i)] != *sampled;
  }
  return num_sampled;
}

/// For the next step, of the requests that have got a token in this one.
void ModelRunner::draft_tokens(std::span<const InputBatch::Row> rows, ModelRunnerOutput& output) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const InputBatch::Row& row = rows[i];
    WorkerRequest& request = *row.request;
    if (!row.samples || request.failed) continue;
    std::int64_t most = std::min(
        loaded_.model->max_model_len() - static_cast<std::int64_t>(request.token_ids.size()),
        std::int64_t{num_drafts_to_make_});
    if (options_.speculative.adaptive) {
      request.draft_limit.observe(static_cast<std::int32_t>(row.drafts.size()),
                                  output.num_sampled[i] - 1);
      if (most > 0) most = request.draft_limit.next(static_cast<std::int32_t>(most));
    }
    if (most <= 0) continue;
    std::vector<TokenId> drafts;
    if (suffix_proposer_) {
      drafts = suffix_proposer_->propose(request.id, request.token_ids,
                                         static_cast<std::size_t>(request.num_prompt_tokens),
                                         static_cast<std::size_t>(most));
    } else {
      const auto found = proposer_->propose(request.token_ids, static_cast<std::size_t>(most));
      drafts.assign(found.begin(), found.end());
    }
    if (!drafts.empty()) output.draft_token_ids.emplace_back(request.id, std::move(drafts));
  }
}

}  // namespace troupe
