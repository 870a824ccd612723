#include "runtime/worker/input_batch.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/worker/sampler.hpp"

namespace troupe {
namespace {

constexpr TokenId kStandIn = 0;

/// Of a request's next tokens, how many score a prompt token: the one at position p scores the one
/// at p + 1; the prompt's last token scores an output.
std::int32_t num_scoring_tokens(const WorkerRequest& request, std::int32_t num_tokens) {
  if (!request.prompt_logprobs) return 0;
  return std::clamp(request.num_prompt_tokens - 1 - request.num_computed_tokens, 0, num_tokens);
}

/// The runs of tokens that stand for an item's embeddings, of all items; no longer ones. max_span
/// 0: any.
std::vector<TwoWaySpan> spans_of(std::span<const MultiModalFeature> items, std::int32_t max_span) {
  std::vector<TwoWaySpan> spans;
  for (const MultiModalFeature& item : items)
    for (const TokenSpan& run : embed_spans(item))
      if (max_span == 0 || run.end - run.begin <= max_span) spans.push_back({run.begin, run.end});
  return spans;
}

/// Calls f(position, number of the embedding among the item's) for the embeddings of `item` at
/// positions in [begin, end).
template <class F>
void for_each_embedding(const MultiModalFeature& item, std::int32_t begin, std::int32_t end,
                        const F& f) {
  if (item.offset >= end || item.offset + item.length <= begin) return;
  std::int32_t number = 0;
  for (const TokenSpan& run : embed_spans(item))
    for (std::int32_t position = run.begin; position < run.end; ++position, ++number)
      if (position >= begin && position < end) f(position, number);
}

}  // namespace

void InputBatch::update(const SchedulerOutput& step) {
  for (const RequestId id : step.finished_ids) forget(id);
  for (const RequestId id : step.preempted_ids) forget(id);
  for (const NewRequestData& data : step.new_requests) admit(data);
  update_known(step.cached_requests);
  build_rows(step);
}

std::vector<const MultiModalFeature*> InputBatch::needed_items() const {
  std::vector<const MultiModalFeature*> needed;
  for (const Row& row : rows_) {
    const std::int32_t begin = row.request->num_computed_tokens;
    for (const MultiModalFeature& item : row.request->items) {
      bool is_needed = options_.encoder_decoder && begin == 0;
      if (!options_.encoder_decoder)
        for_each_embedding(item, begin, begin + row.num_tokens,
                           [&](std::int32_t, std::int32_t) { is_needed = true; });
      if (is_needed) needed.push_back(&item);
    }
  }
  return needed;
}

void InputBatch::find_embeddings(const Row& row, const EncoderOutputs& outputs) {
  const std::int32_t begin = row.request->num_computed_tokens;
  for (const MultiModalFeature& item : row.request->items) {
    std::span<const std::int32_t> rows;  // looked up at the item's first embedding in the step
    for_each_embedding(item, begin, begin + row.num_tokens,
                       [&](std::int32_t position, std::int32_t number) {
                         if (rows.empty()) rows = outputs.rows_of(item.identifier);
                         CHECK(number < std::ssize(rows), item.identifier, number, rows.size());
                         embedded_tokens_.push_back(position - begin);
                         embedding_rows_.push_back(rows[static_cast<std::size_t>(number)]);
                       });
  }
}

void InputBatch::forget(RequestId id) {
  const auto found = requests_.find(value(id));
  if (found == requests_.end()) return;
  tables_.remove(found->second.table_row);
  requests_.erase(found);
}

void InputBatch::admit(const NewRequestData& data) {
  forget(data.id);
  const auto num_prompt_tokens = static_cast<std::size_t>(data.num_prompt_tokens);
  CHECK(num_prompt_tokens <= data.token_ids.size(), num_prompt_tokens, data.token_ids.size());
  WorkerRequest request{.id = data.id,
                        .token_ids = data.token_ids,
                        .num_prompt_tokens = data.num_prompt_tokens,
                        .num_computed_tokens = data.num_computed_tokens,
                        .table_row = tables_.add(data.block_ids),
                        .adapter_id = data.lora ? data.lora->int_id : 0,
                        .second_text_begin = data.second_text_begin,
                        .items = data.mm_features,
                        .sampling = SamplingState(data.params, data.token_ids, num_prompt_tokens,
                                                  options_.transcription.get())};
  if (options_.is_encoder) request.two_way_spans = {{0, data.num_prompt_tokens}};
  if (options_.two_way_items)
    request.two_way_spans = spans_of(data.mm_features, options_.max_two_way_span);
  if (data.params.prompt_logprobs)
    request.prompt_logprobs = {
        .id = data.id, .first_position = data.num_computed_tokens + 1, .rows = {}};
  requests_.emplace(value(data.id), std::move(request));
}

void InputBatch::update_known(const CachedRequestData& data) {
  const std::size_t num_groups = tables_.num_groups();
  CHECK(
      data.new_block_counts.empty() || data.new_block_counts.size() == data.ids.size() * num_groups,
      data.new_block_counts.size(), data.ids.size());
  auto next_block = data.new_block_ids.begin();
  for (std::size_t i = 0; i < data.ids.size(); ++i) {
    const auto found = requests_.find(value(data.ids[i]));
    CHECK(found != requests_.end(), value(data.ids[i]));
    WorkerRequest& request = found->second;
    // It has not advanced: what was computed in between does not count.
    if (data.num_computed_tokens[i] <= request.num_computed_tokens &&
        i < data.num_output_tokens.size())
      keep_tokens(request,
                  static_cast<std::size_t>(request.num_prompt_tokens + data.num_output_tokens[i]));
    request.num_computed_tokens = data.num_computed_tokens[i];
    // Drafts that did not come true, of which the Scheduler had not heard.
    const std::int32_t num_missing =
        request.num_computed_tokens + 1 - static_cast<std::int32_t>(request.token_ids.size());
    if (num_missing > 0 && num_missing <= request.num_drafts)
      request.num_computed_tokens -= num_missing;
    if (data.new_block_counts.empty()) continue;
    for (std::size_t group = 0; group < num_groups; ++group) {
      const std::int32_t count = data.new_block_counts[i * num_groups + group];
      CHECK(count <= data.new_block_ids.end() - next_block, count);
      tables_.append(request.table_row, group, {next_block, next_block + count});
      next_block += count;
    }
  }
}

void InputBatch::build_rows(const SchedulerOutput& step) {
  CHECK(step.scheduled_ids.size() == step.num_scheduled_tokens.size());
  CHECK(step.num_draft_tokens.empty() || step.num_draft_tokens.size() == step.scheduled_ids.size(),
        step.num_draft_tokens.size(), step.scheduled_ids.size());
  rows_.clear();
  draft_token_ids_ = step.draft_token_ids;
  std::span<TokenId> drafts_left = draft_token_ids_;
  std::int32_t num_outputs_before = 0;
  for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
    const auto found = requests_.find(value(step.scheduled_ids[i]));
    CHECK(found != requests_.end(), value(step.scheduled_ids[i]));
    WorkerRequest& request = found->second;
    const std::int32_t num_tokens = step.num_scheduled_tokens[i];
    const std::int32_t seq_len = request.num_computed_tokens + num_tokens;
    const std::int32_t num_drafts = step.num_draft_tokens.empty() ? 0 : step.num_draft_tokens[i];
    CHECK(num_drafts >= 0 && num_drafts < num_tokens && num_drafts <= std::ssize(drafts_left),
          value(request.id), num_drafts, num_tokens, drafts_left.size());
    const std::span<TokenId> drafts = drafts_left.first(static_cast<std::size_t>(num_drafts));
    drafts_left = drafts_left.subspan(drafts.size());
    for (std::size_t n = 0; n < std::min(drafts.size(), request.next_drafts.size()); ++n)
      if (drafts[n] < 0) drafts[n] = request.next_drafts[n];
    const std::int32_t previous_end = std::exchange(request.step_end, seq_len);
    const std::int32_t previous_drafts = std::exchange(request.num_drafts, num_drafts);
    const std::int32_t num_needed = seq_len - num_drafts;
    if (request.failed) request.token_ids.resize(static_cast<std::size_t>(num_needed), kStandIn);
    const auto num_known = static_cast<std::int32_t>(request.token_ids.size());
    CHECK(num_needed <= num_known, value(request.id), num_tokens, seq_len, num_known);
    CHECK(num_drafts == 0 || num_needed == num_known, value(request.id), num_needed, num_known);
    const bool samples = num_needed == num_known && !request.failed;
    const std::int32_t num_scored = num_scoring_tokens(request, num_tokens);
    const bool gives_all = options_.gives_all || num_scored > 0 ||
                           options_.pooling == PoolingType::kCls ||
                           options_.pooling == PoolingType::kMean;
    const std::int32_t num_outputs = gives_all ? num_tokens : samples ? 1 + num_drafts : 0;
    rows_.push_back({.request = &request,
                     .num_tokens = num_tokens,
                     .first_output = num_outputs_before,
                     .num_outputs = num_outputs,
                     .num_scored = num_scored,
                     .samples = samples,
                     .drafts = drafts,
                     .previous_end = previous_end,
                     .previous_drafts = previous_drafts});
    num_outputs_before += num_outputs;
  }
  CHECK(drafts_left.empty(), drafts_left.size());
}

TokenId InputBatch::token_at(const Row& row, std::int32_t position) {
  const auto num_known = static_cast<std::int32_t>(row.request->token_ids.size());
  if (position < num_known) return row.request->token_ids[static_cast<std::size_t>(position)];
  const TokenId draft = row.drafts[static_cast<std::size_t>(position - num_known)];
  return draft < 0 ? kStandIn : draft;
}

void InputBatch::build(std::int64_t vocab_size, const EncoderOutputs* outputs) {
  flat_.clear();
  outputs_ = outputs == nullptr ? ConstMatrix() : outputs->memory();
  for (const Row& row : rows_) {
    const std::int32_t begin = row.request->num_computed_tokens;
    row_token_ids_.clear();
    for (std::int32_t position = begin; position < begin + row.num_tokens; ++position) {
      const TokenId token = token_at(row, position);
      CHECK(token >= 0 && token < vocab_size, value(row.request->id), token, vocab_size);
      row_token_ids_.push_back(token);
    }
    const auto& spans = row.request->two_way_spans;
    const auto first =
        std::ranges::find_if(spans, [&](const TwoWaySpan& span) { return span.end > begin; });
    const auto end = std::find_if(first, spans.end(), [&](const TwoWaySpan& span) {
      return span.begin >= begin + row.num_tokens;
    });
    embedded_tokens_.clear();
    embedding_rows_.clear();
    std::span<const std::int32_t> encoder_rows;
    std::int32_t num_encoder_rows = 0;
    if (options_.encoder_decoder) {
      for (const MultiModalFeature& item : row.request->items) {  // there is one
        num_encoder_rows = item.length;
        if (begin == 0) encoder_rows = outputs->rows_of(item.identifier);
      }
    } else if (outputs != nullptr) {
      find_embeddings(row, *outputs);
    }
    flat_.add(row_token_ids_, begin, row.request->table_row, row.num_outputs,
              {.spans = {first, end},
               .embedded_tokens = embedded_tokens_,
               .embedding_rows = embedding_rows_,
               .adapter_id = row.request->adapter_id,
               .second_text_begin = row.request->second_text_begin,
               .encoder_rows = encoder_rows,
               .num_encoder_rows = num_encoder_rows,
               .num_drafts = static_cast<std::int32_t>(row.drafts.size()),
               .previous_end = row.previous_end,
               .previous_drafts = row.previous_drafts});
  }
}

std::vector<std::int32_t> InputBatch::adapters_in_use() const {
  std::vector<std::int32_t> ids;
  for (const auto& [id, request] : requests_)
    if (request.adapter_id != 0) ids.push_back(request.adapter_id);
  return ids;
}

WorkerRequest* InputBatch::find(RequestId id) {
  const auto found = requests_.find(value(id));
  return found == requests_.end() ? nullptr : &found->second;
}

void InputBatch::append_token(WorkerRequest& request, TokenId token) {
  request.failed = token == kNoToken;
  request.next_drafts.clear();
  if (request.failed) return;
  request.token_ids.push_back(token);
  request.sampling.append(token);
}

/// The Scheduler has discarded what is behind them: it was sampled from KV that was not loaded.
void InputBatch::keep_tokens(WorkerRequest& request, std::size_t num_tokens) {
  if (num_tokens >= request.token_ids.size()) return;
  request.token_ids.resize(num_tokens);
  request.sampling = SamplingState(request.sampling.params(), request.token_ids,
                                   static_cast<std::size_t>(request.num_prompt_tokens),
                                   options_.transcription.get());
  request.failed = false;
  request.next_drafts.clear();
  request.num_drafts = 0;
}

}  // namespace troupe
