// Processes the result of a step.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {

/// One request's part of a step and of its result.
struct Scheduler::StepResult {
  std::int32_t num_scheduled = 0;
  std::int32_t num_drafts = 0;
  std::int32_t num_invalid_drafts = 0;  ///< of those, rejected by the grammar
  bool lost = false;                    ///< computed from KV that was not loaded
  std::span<const TokenId> sampled;
  const std::vector<float>* embedding = nullptr;  ///< of a pooling request
  const ModelRunnerOutput* output = nullptr;
  std::size_t index = 0;  ///< in output->ids
  std::int32_t first_logprob_row = 0;
  std::size_t first_logprob = 0;
};

namespace {

/// Rows [first_row, + num_rows), whose entries begin at first_entry.
LogprobRows slice(const LogprobRows& rows, std::size_t first_row, std::size_t num_rows,
                  std::size_t first_entry) {
  LogprobRows part;
  std::size_t num_entries = 0;
  for (std::size_t row = first_row; row < first_row + num_rows; ++row) {
    part.row_sizes.push_back(rows.row_sizes[row]);
    num_entries += static_cast<std::size_t>(rows.row_sizes[row]);
  }
  const auto copy = [&](const auto& from, auto& to) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first_entry);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(num_entries));
  };
  copy(rows.token_ids, part.token_ids);
  copy(rows.logprobs, part.logprobs);
  copy(rows.ranks, part.ranks);
  return part;
}

/// Computed prompt tokens, if the first num_cached tokens of the request are in the cache.
std::int32_t num_created_tokens(const PrefillStats& stats, std::int32_t num_cached) {
  return std::max(0, std::min(num_cached, stats.num_prompt_tokens) - stats.num_cached_tokens);
}

}  // namespace

Task<EngineCoreOutputs> Scheduler::update_from_output(SchedulerOutput step,
                                                      ModelRunnerOutput result, double now) {
  now_ = now;
  EngineCoreOutputs outputs;
  outputs.engine_index = config_.engine_index;
  outputs.time = now;
  CHECK(result.ids == step.scheduled_ids, result.ids.size(), step.scheduled_ids.size());
  CHECK(result.num_sampled.size() == result.ids.size() || result.sampled_token_ids.empty());
  outputs.outputs.reserve(result.ids.size());
  suspects_.record_result(result);

  if (step.total_num_scheduled_tokens > 0) {
    pass_fence();
    draft_budget_.on_done(now, static_cast<std::int32_t>(step.scheduled_ids.size()),
                          step.total_num_scheduled_tokens,
                          static_cast<std::int32_t>(step.draft_token_ids.size()), result.drafting);
  }
  for (const RequestId id : result.drafting.undrafted) {
    const auto known = requests_.find(id);
    // A request that has been preempted is another one to the draft model.
    if (known == requests_.end() || known->second->num_stale_tokens > 0) continue;
    known->second->is_undrafted = true;
    known->second->draft_token_ids.clear();
  }
  std::vector<RequestId> lost;
  if (!result.kv_connector.empty()) {
    CHECK(connector_ != nullptr);
    connector_->set_endpoints(result.kv_connector.endpoints);
    lost = co_await take_failed_loads(step, result.kv_connector);
  }

  if (!result.ec_connector.empty()) take_encoder_report(result.ec_connector);

  std::size_t next_token = 0;
  StepResult part{.output = &result};
  for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
    const RequestId id = step.scheduled_ids[i];
    const auto num_sampled =
        i < result.num_sampled.size() ? static_cast<std::size_t>(result.num_sampled[i]) : 0;
    part.index = i;
    part.num_scheduled = step.num_scheduled_tokens[i];
    part.num_drafts = step.num_draft_tokens.empty() ? 0 : step.num_draft_tokens[i];
    part.num_invalid_drafts = 0;
    for (const auto& [owner, n] : step.num_invalid_draft_tokens)
      if (owner == id) part.num_invalid_drafts = n;
    part.sampled = std::span(result.sampled_token_ids).subspan(next_token, num_sampled);
    next_token += num_sampled;
    part.embedding = nullptr;
    for (const auto& [owner, embedding] : result.pooling_outputs)
      if (owner == id) part.embedding = &embedding;
    part.lost = std::find(lost.begin(), lost.end(), id) != lost.end();
    const auto known = requests_.find(id);
    if (known != requests_.end()) {
      RequestState& request = *known->second;
      const bool was_running = request.status == RequestStatus::kRunning;
      const bool had_output = !request.prefill_stats;
      const bool stopped = process_result(request, part, outputs);
      // Accepted drafts may have filled the block in which the prompt ends.
      if (config_.async_scheduling && !had_output && !request.prefill_stats && num_sampled > 1) {
        const SlotsAllocated answer = co_await ask_num_cached(request);
        record_evicted(answer.evicted);
        PrefillStats& stats = outputs.outputs.back().prefill_stats.value();
        stats.num_cache_creation_tokens =
            num_created_tokens(stats, answer.num_cached_tokens.front());
      }
      if (stopped) {
        if (was_running)
          std::erase(running_, &request);
        else
          remove_from_queues(&request);
        end_turn(request);
      }
    }
    if (i < result.num_logprob_rows.size()) {
      for (std::int32_t row = 0; row < result.num_logprob_rows[i]; ++row)
        part.first_logprob += static_cast<std::size_t>(
            result.logprobs.row_sizes[static_cast<std::size_t>(part.first_logprob_row++)]);
    }
  }
  const std::size_t num_results = outputs.outputs.size();
  end_without_tokens(result, outputs);
  if (connector_ != nullptr) {
    co_await release_ended(std::span(outputs.outputs).first(num_results));
    if (!result.kv_connector.empty()) take_transfer_results(result.kv_connector);
    add_early_params(outputs);
  }
  const auto by_client = [](const EngineCoreOutput& a, const EngineCoreOutput& b) {
    return a.client_index < b.client_index;
  };
  // With one client, the usual case, the order is already right.
  if (!std::is_sorted(outputs.outputs.begin(), outputs.outputs.end(), by_client))
    std::stable_sort(outputs.outputs.begin(), outputs.outputs.end(), by_client);
  outputs.finished_requests = std::exchange(finished_by_client_, {});
  outputs.stats = take_stats(step.total_num_scheduled_tokens);
  co_return outputs;
}

void Scheduler::count_drafts(std::int32_t num_drafts, std::int32_t num_accepted) {
  const auto num_positions = static_cast<std::size_t>(
      std::max(config_.speculative.num_draft_tokens, config_.max_proposed_tokens));
  spec_stats_.num_accepted_per_position.resize(num_positions);
  spec_stats_.num_drafted_per_position.resize(num_positions);
  ++spec_stats_.num_requests;
  spec_stats_.num_draft_tokens += num_drafts;
  spec_stats_.num_accepted_tokens += num_accepted;
  for (std::int32_t i = 0; i < num_accepted; ++i)
    ++spec_stats_.num_accepted_per_position[static_cast<std::size_t>(i)];
  for (std::int32_t i = 0; i < num_drafts; ++i)
    ++spec_stats_.num_drafted_per_position[static_cast<std::size_t>(i)];
}

/// True: the request has stopped, and must be removed from the queues.
bool Scheduler::process_result(RequestState& request, const StepResult& result,
                               EngineCoreOutputs& outputs) {
  request.num_in_flight_tokens -= result.num_scheduled;
  const bool stale = request.num_stale_tokens > 0;
  if (stale) {
    request.num_stale_tokens -= result.num_scheduled;
  }
  if (result.lost || is_finished(request.status) || (stale && request.drop_stale_output))
    return false;
  if (result.num_drafts > 0 && !result.sampled.empty()) {
    const std::int32_t num_sampled_per_step = config_.pooling ? 0 : 1;
    const auto num_accepted =
        std::max(static_cast<std::int32_t>(result.sampled.size()) - num_sampled_per_step, 0);
    const std::int32_t num_rejected = result.num_drafts - num_accepted;
    if (!stale) {
      if (request.num_computed_tokens > 0) request.num_computed_tokens -= num_rejected;
      if (request.num_output_placeholders > 0) request.num_output_placeholders -= num_rejected;
    }
    if (config_.max_proposed_tokens > 0) {
      request.num_rejected_proposals += num_rejected;
      request.num_accepted_proposals += num_accepted;
    }
    const std::int32_t num_valid = result.num_drafts - result.num_invalid_drafts;
    // What a grammar proposes says nothing about the drafts of a model.
    if (num_valid > 0 && request.proposal.tokens.empty())
      draft_budget_.on_verified(num_valid, num_accepted);
    count_drafts(num_valid, num_accepted);
  }
  if (!request.mm_features.empty())
    tell_encoder(EncoderCacheCommandKind::kFreeComputed, request,
                 request.num_computed_tokens - request.num_output_placeholders -
                     config_.speculative.num_prefill_lookahead);

  const GrammarEnd* const end = end_in(request, result);
  const std::int32_t num_kept = keep_tokens(request, result, stale, end);
  advance_grammar(request, result.sampled.first(static_cast<std::size_t>(num_kept)));
  if (result.embedding != nullptr) request.status = RequestStatus::kFinishedStopped;
  const bool stopped = is_finished(request.status);
  if (num_kept == 0 && result.embedding == nullptr && !stopped) return false;

  EngineCoreOutput& output = outputs.outputs.emplace_back();
  output.id = request.id;
  output.client_index = request.client_index;
  const auto kept = static_cast<std::size_t>(num_kept);
  output.new_token_ids.assign(result.sampled.begin(),
                              result.sampled.begin() + static_cast<std::ptrdiff_t>(num_kept));
  const ModelRunnerOutput& step = *result.output;
  if (result.index < step.num_logprob_rows.size() && step.num_logprob_rows[result.index] > 0)
    output.new_logprobs =
        slice(step.logprobs, static_cast<std::size_t>(result.first_logprob_row),
              std::min(kept, static_cast<std::size_t>(step.num_logprob_rows[result.index])),
              result.first_logprob);
  for (const PromptLogprobs& logprobs : step.prompt_logprobs)
    if (logprobs.id == request.id) output.new_prompt_logprobs = logprobs;
  if (result.embedding != nullptr) output.pooling_output = *result.embedding;
  output.events = std::exchange(request.events, {});
  if (request.prefill_stats) {
    PrefillStats& stats = output.prefill_stats.emplace(*request.prefill_stats);
    request.prefill_stats.reset();
    stats.num_computed_tokens = stats.num_prompt_tokens - stats.num_cached_tokens;
    stats.num_cache_creation_tokens = num_created_tokens(stats, request.num_cached_estimate);
  }
  if (request.status == RequestStatus::kFinishedError && end != nullptr) output.error = end->error;
  output.stop_reason = request.stop_reason;  // a session keeps that of its last stop
  if (stopped) output.finish_reason = finish_reason(request.status);
  if (stopped && ec_connector_ != nullptr)
    output.ec_transfer_params = ec_connector_->transfer_params(request);
  return stopped;
}

/// The end that the request's grammar has with drafts which this step has accepted, or null.
const GrammarEnd* Scheduler::end_in(const RequestState& request, const StepResult& result) {
  const std::optional<GrammarEnd>& end = request.grammar_end;
  const bool is_here =
      end && end->step == result.output->step && result.sampled.size() > end->num_tokens;
  return is_here ? &*end : nullptr;
}

/// Appends sampled tokens up to where the request stops, or its grammar ends; returns their number.
std::int32_t Scheduler::keep_tokens(RequestState& request, const StepResult& result, bool stale,
                                    const GrammarEnd* end) {
  if (result.sampled.empty()) return 0;
  const bool was_running = request.status == RequestStatus::kRunning;
  std::int32_t num_kept = 0;
  for (const TokenId token : result.sampled) {
    ++num_kept;
    if (append_and_check_stop(request, token, config_.max_model_len)) break;
    if (end != nullptr && std::cmp_equal(num_kept, end->num_tokens)) {
      request.status = end->error ? RequestStatus::kFinishedError : RequestStatus::kFinishedStopped;
      request.resumable = false;
      break;
    }
  }
  tell_kv(KVCacheCommandKind::kAppendTokens, request.id, num_kept);
  kv_updates_.token_ids.insert(kv_updates_.token_ids.end(), result.sampled.begin(),
                               result.sampled.begin() + num_kept);
  if (config_.async_scheduling) {
    if (!stale) {
      request.num_output_placeholders -= num_kept;
      CHECK(request.num_output_placeholders >= 0, request.num_output_placeholders);
    }
    if (was_running && config_.prefix_caching && !request.is_blended)
      tell_kv(KVCacheCommandKind::kCacheBlocks, request.id,
              request.num_computed_tokens - request.num_output_placeholders);
  }
  return num_kept;
}

/// The request has stopped: it finishes, or, if it is a session, continues with its next chunk.
void Scheduler::end_turn(RequestState& request) {
  if (!request.resumable) return free_request(request);
  request.num_computed_tokens -= request.num_output_placeholders;
  // Drafts accepted beyond the stop are not part of the request: the tokens that follow replace
  // them.
  request.num_computed_tokens = std::min(request.num_computed_tokens, request.num_tokens());
  request.num_output_placeholders = 0;
  request.draft_token_ids.clear();
  request.num_stale_tokens = request.num_in_flight_tokens;
  request.drop_stale_output = true;
  stop_clock(request);
  if (request.next_chunks.empty()) {
    request.status = RequestStatus::kWaitingForStreamingRequest;
    leave_turns(request);
    ++num_waiting_for_chunk_;
  } else {
    std::optional<EngineCoreRequest> chunk = std::move(request.next_chunks.front());
    request.next_chunks.pop_front();
    if (!chunk) return free_request(request);
    apply_chunk(request, std::move(*chunk));
  }
  enqueue_waiting(&request);
}

/// The session's computed tokens and the chunk become its prompt. The last sampled token has not
/// been computed, and is dropped. A chunk that makes the session too long ends it with an error.
void Scheduler::apply_chunk(RequestState& request, EngineCoreRequest chunk) {
  const auto length =
      static_cast<std::size_t>(request.num_computed_tokens) + chunk.prompt_token_ids.size();
  if (std::cmp_greater(length, config_.max_model_len)) {
    failures_.emplace_back(request.id,
                           invalid_argument("the session would have " + std::to_string(length) +
                                            " tokens with this chunk, max_model_len is " +
                                            std::to_string(config_.max_model_len)));
    if (request.status == RequestStatus::kWaitingForStreamingRequest) return;
    request.status = RequestStatus::kWaitingForStreamingRequest;
    leave_turns(request);
    ++num_waiting_for_chunk_;
    return;
  }
  if (request.status == RequestStatus::kWaitingForStreamingRequest) --num_waiting_for_chunk_;
  std::vector<TokenId>& token_ids = request.token_ids.edit();
  token_ids.resize(static_cast<std::size_t>(request.num_computed_tokens));
  tell_kv(KVCacheCommandKind::kTruncate, request.id, request.num_computed_tokens);
  const std::int32_t base = request.num_computed_tokens;
  for (MultiModalFeature& item : chunk.mm_features) {
    item.offset += base;
    MultiModalFeature name = item;
    name.data.reset();
    kv_updates_.new_mm_features.emplace_back(request.id, std::move(name));
    request.mm_features.push_back(std::move(item));
  }
  if (!chunk.mm_features.empty())
    encoder_updates_.requests.push_back({request.id, request.mm_features});
  add_item_users(std::span(request.mm_features).last(chunk.mm_features.size()));
  token_ids.insert(token_ids.end(), chunk.prompt_token_ids.begin(), chunk.prompt_token_ids.end());
  tell_kv(KVCacheCommandKind::kExtendPrompt, request.id,
          static_cast<std::int32_t>(chunk.prompt_token_ids.size()));
  kv_updates_.token_ids.insert(kv_updates_.token_ids.end(), chunk.prompt_token_ids.begin(),
                               chunk.prompt_token_ids.end());
  request.num_prompt_tokens = request.num_tokens();
  request.arrival_time = chunk.arrival_time;
  start_clock(request, chunk.limits, chunk.age_s);
  enter_turns(request);
  request.params = std::move(chunk.params);
  request.max_tokens = request.params.max_tokens.value_or(1);
  request.status = RequestStatus::kWaiting;
  request.events.push_back({EngineEventKind::kQueued, now_});
}

/// Ends requests that failed by themselves with an error; the others are not affected. Ends those
/// that were only looked up with the answer.
void Scheduler::end_without_tokens(const ModelRunnerOutput& result, EngineCoreOutputs& outputs) {
  const auto fail = [&](RequestId id, Error error) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) return;
    RequestState& request = *known->second;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = id;
    output.client_index = request.client_index;
    output.finish_reason = FinishReason::kError;
    output.events = std::exchange(request.events, {});
    output.error = std::move(error);
    finish(request, RequestStatus::kFinishedError);
  };
  for (const auto& [id, error] : result.request_errors) fail(id, error);
  for (const auto& [id, error] : std::exchange(failures_, {})) fail(id, error);
  for (auto& [id, answer] : std::exchange(lookup_answers_, {})) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = id;
    output.client_index = known->second->client_index;
    output.finish_reason = FinishReason::kLength;
    output.events = std::exchange(known->second->events, {});
    output.kv_transfer_params = std::move(answer);
    finish(*known->second, RequestStatus::kFinishedLengthCapped);
  }
}

void Scheduler::record_evicted(std::span<const BlockResidency> evicted) {
  evicted_blocks_.insert(evicted_blocks_.end(), evicted.begin(), evicted.end());
}

namespace {

/// Sorted, each once.
void add_adapter_name(const RequestState& request, std::vector<std::string>& names) {
  if (!request.lora) return;
  const auto place = std::lower_bound(names.begin(), names.end(), request.lora->name);
  if (place == names.end() || *place != request.lora->name) names.insert(place, request.lora->name);
}

}  // namespace

SchedulerStats Scheduler::take_stats(std::int32_t num_scheduled_tokens) {
  SchedulerStats stats;
  stats.num_running_reqs = static_cast<std::int32_t>(running_.size());
  stats.num_deferred_reqs = num_deferred_;
  stats.num_waiting_reqs = num_waiting_requests() - num_deferred_;
  stats.num_free_blocks = num_free_blocks_;
  stats.num_pinned_blocks = num_pinned_blocks_;
  stats.kv_cache_usage = config_.num_blocks <= 1 ? 0.0
                                                 : 1.0 - static_cast<double>(num_free_blocks_) /
                                                             (config_.num_blocks - 1);
  stats.num_scheduled_tokens = num_scheduled_tokens;
  stats.prefix_cache = std::exchange(prefix_stats_, {});
  stats.spec_decoding = std::exchange(spec_stats_, {});
  stats.connector_prefix_cache = std::exchange(connector_stats_, {});
  stats.encoder_cache = std::exchange(encoder_stats_, {});
  stats.encoder_transfer = std::exchange(encoder_transfer_stats_, {});
  stats.evicted_blocks = std::exchange(evicted_blocks_, {});
  if (connector_ != nullptr) count_kv_loads(stats);
  if (config_.max_loras > 0) {
    for (const RequestState* request : running_) add_adapter_name(*request, stats.running_adapters);
    for (const RequestState* request : waiting_.list())
      add_adapter_name(*request, stats.waiting_adapters);
  }
  return stats;
}

}  // namespace troupe
