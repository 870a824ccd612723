#include "runtime/scheduler/scheduler.hpp"

#include <algorithm>

#include "messages/kv_lookup.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {
namespace {

std::vector<MultiModalFeature> without_data(const std::vector<MultiModalFeature>& items) {
  std::vector<MultiModalFeature> result = items;
  for (MultiModalFeature& item : result) item.data.reset();
  return result;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, KVCachePort& kv_cache, EncoderCachePort* encoder_cache,
                     KVConnector* connector, ECConnector* ec_connector)
    : config_(std::move(config)),
      kv_cache_(kv_cache),
      encoder_cache_(encoder_cache),
      connector_(connector),
      ec_connector_(ec_connector),
      waiting_(config_.policy, fair_share_),
      holding_(config_.policy, fair_share_),
      plan_(std::make_unique<StepPlan>()),
      defer_frees_(connector != nullptr && config_.kv_transfer.consumer &&
                   config_.max_concurrent_batches() > 1) {
  CHECK(connector_ == nullptr || config_.kv_transfer.block_size > 0);
  CHECK(ec_connector_ == nullptr || (encoder_cache_ != nullptr && !config_.encoder_decoder));
  CHECK(config_.max_model_len > 0, config_.max_model_len);
  CHECK(config_.max_num_batched_tokens >= config_.max_num_seqs, config_.max_num_batched_tokens,
        config_.max_num_seqs);
}

Scheduler::~Scheduler() = default;

// ---- adding and finishing requests --------------------------------------------------------------

Result<void> Scheduler::add_request(EngineCoreRequest request, double now) {
  now_ = now;
  const auto known = requests_.find(request.id);
  if (known != requests_.end()) {
    RequestState& session = *known->second;
    if (!session.resumable || is_finished(session.status))
      return invalid_argument("request id " + to_string(request.id) + " is in use");
    std::optional<EngineCoreRequest> chunk;
    if (request.resumable) chunk = std::move(request);
    if (session.status != RequestStatus::kWaitingForStreamingRequest) {
      session.next_chunks.push_back(std::move(chunk));
    } else if (chunk) {
      // Its arrival time changes, and with it its position under kPriority.
      RequestQueue& queue = waiting_.contains(&session) ? waiting_ : holding_;
      const bool by_priority = config_.policy == SchedulingPolicy::kPriority;
      if (by_priority) queue.remove(&session);
      apply_chunk(session, std::move(*chunk));
      if (by_priority) queue.push(&session);
    } else {
      finish(session, RequestStatus::kFinishedAborted);
    }
    return {};
  }

  if (delayed_releases_.contains(request.id))
    return invalid_argument("request id " + to_string(request.id) + " is in use");
  if (request.prompt_token_ids.empty()) return invalid_argument("the prompt is empty", "prompt");
  if (connector_ != nullptr && !request.kv_transfer_params.empty() &&
      request.kv_transfer_params != kLookupParams)
    RETURN_IF_ERROR(connector_->check_transfer_params(request.kv_transfer_params));
  KVCacheRequest cached{
      .id = request.id,
      .token_ids = request.prompt_token_ids,
      .num_prompt_tokens = static_cast<std::int32_t>(request.prompt_token_ids.size()),
      .mm_features = without_data(request.mm_features),
      .lora = request.lora,
      .cache_salt = request.cache_salt,
      .skip_reading_prefix_cache = request.params.skip_reading_prefix_cache,
      .report_all_hits = request.report_all_cache_hits,
      .session_id = request.session_id};
  if (!request.output_token_ids.empty()) {
    std::vector<TokenId>& all = cached.token_ids.edit();
    all.insert(all.end(), request.output_token_ids.begin(), request.output_token_ids.end());
  }
  const RequestLimits limits = request.limits;
  const std::vector<PrefixPin> pins = std::move(request.pins);
  const double age_s = request.age_s;
  auto state = std::make_unique<RequestState>(std::move(request));
  RequestState* const added = state.get();
  added->sequence = next_sequence_++;
  added->events.push_back({EngineEventKind::kQueued, now});
  start_clock(*added, limits, age_s);
  enter_turns(*added);
  if (connector_ != nullptr) {
    connector_->on_new_request(cached);
    if (!added->kv_transfer_params.empty() && !added->only_looks_up)
      connector_->on_transfer_params(*added);
  }
  kv_updates_.new_requests.push_back(std::move(cached));
  keep_pins(*added, pins);
  if (!added->mm_features.empty())
    encoder_updates_.requests.push_back({added->id, without_data(added->mm_features)});
  add_item_users(added->mm_features);
  requests_.emplace(added->id, std::move(state));
  if (added->only_looks_up) lookups_.push_back(added->id);
  enqueue_waiting(added);
  return {};
}

void Scheduler::enqueue_waiting(RequestState* request) {
  (request->holds_kv() ? holding_ : waiting_).push(request);
  if (request->status != RequestStatus::kWaiting) defer(*request);  // it cannot run yet
}

/// Counts as skipped until it is admitted or finished.
void Scheduler::defer(RequestState& request) {
  if (!request.deferred) ++num_deferred_;
  request.deferred = true;
}

void Scheduler::remove_from_queues(RequestState* request) {
  if (!waiting_.remove(request)) holding_.remove(request);
}

std::vector<RequestId> Scheduler::finish_requests(std::span<const RequestId> ids,
                                                  RequestStatus status) {
  std::vector<RequestId> finished;
  for (const RequestId id : ids) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    finish(*known->second, status);
    finished.push_back(id);
  }
  return finished;
}

std::vector<RequestState*> Scheduler::unfinished_in_order() const {
  std::vector<RequestState*> all;
  for (const auto& [id, request] : requests_)
    if (!is_finished(request->status)) all.push_back(request.get());
  std::sort(all.begin(), all.end(),
            [](const auto* a, const auto* b) { return a->sequence < b->sequence; });
  return all;
}

std::vector<RequestId> Scheduler::finish_all_requests(RequestStatus status) {
  std::vector<RequestId> ids;
  for (const RequestState* request : unfinished_in_order()) ids.push_back(request->id);
  return finish_requests(ids, status);
}

EngineCoreOutputs Scheduler::abort_all_requests(double now) {
  now_ = now;
  EngineCoreOutputs outputs{.engine_index = config_.engine_index, .time = now};
  for (RequestState* request : unfinished_in_order()) {
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = request->id;
    output.client_index = request->client_index;
    output.finish_reason = FinishReason::kAbort;
    output.events = std::exchange(request->events, {});
    finish(*request, RequestStatus::kFinishedAborted);
  }
  outputs.finished_requests = std::exchange(finished_by_client_, {});
  outputs.stats = take_stats(/*num_scheduled_tokens=*/0);
  return outputs;
}

void Scheduler::finish(RequestState& request, RequestStatus status) {
  CHECK(is_finished(status), static_cast<int>(status));
  if (request.status == RequestStatus::kRunning)
    std::erase(running_, &request);
  else
    remove_from_queues(&request);
  if (request.status == RequestStatus::kWaitingForStreamingRequest) --num_waiting_for_chunk_;
  request.status = status;
  free_request(request);
}

/// Frees a finished request; the caller has removed it from the queues.
void Scheduler::free_request(RequestState& request) {
  if (request.deferred) --num_deferred_;
  stop_clock(request);
  leave_turns(request);
  if (!request.mm_features.empty()) release_items(request);
  finished_ids_.push_back(request.id);
  if (config_.include_finished_requests)
    finished_by_client_.emplace_back(request.client_index, request.id);
  if (connector_ == nullptr) return forget(request);
  unfinished_prefills_.erase(&request);
  ended_.push_back(&request);
}

/// Its blocks are no longer used.
void Scheduler::forget(RequestState& request) {
  if (std::exchange(request.holds_blocks_after_end, false)) --num_holding_after_end_;
  keep_blocks(request);
  if (must_defer_free(request)) free_blocks(request);
  tell_kv(KVCacheCommandKind::kForgetRequest, request.id);
  requests_.erase(request.id);
}

/// Moves the request back to the waiting queue; it keeps its tokens, which are recomputed.
void Scheduler::preempt(RequestState& request, bool drop_output) {
  free_blocks(request);
  unfinished_prefills_.erase(&request);
  if (!request.mm_features.empty()) tell_encoder(EncoderCacheCommandKind::kFreeAll, request);
  request.status = RequestStatus::kPreempted;
  request.num_computed_tokens = 0;
  request.num_cached_estimate = 0;
  request.draft_token_ids.clear();
  // A producer of KV has to compute it again anyway, together with the token.
  drop_output |= connector_ != nullptr && config_.kv_transfer.producer;
  request.drop_stale_output =
      drop_output || (request.drop_stale_output && request.num_stale_tokens > 0);
  request.num_stale_tokens = request.num_in_flight_tokens;
  request.num_output_placeholders = 0;
  ++request.num_preemptions;
  request.events.push_back({EngineEventKind::kPreempted, now_});
  waiting_.prepend(&request);
  preempted_ids_.push_back(request.id);
}

// ---- a step -------------------------------------------------------------------------------------

Task<SchedulerOutput> Scheduler::schedule(double now, bool defer_prefills) {
  now_ = now;
  if (!ended_.empty()) co_await release_ended();
  suspects_.drop_ended([this](RequestId id) {
    const RequestState* const known = request(id);
    return known == nullptr || is_finished(known->status);
  });
  StepPlan& plan = *plan_;
  start_plan(plan, defer_prefills);
  co_await schedule_running(plan);
  for (const ScheduledRequest& entry : plan.scheduled) {
    const auto& lora = entry.request->lora;
    if (lora && std::find(plan.loras.begin(), plan.loras.end(), lora->int_id) == plan.loras.end())
      plan.loras.push_back(lora->int_id);
  }
  if (!lookups_.empty()) co_await look_up_prompts();
  if (!plan.preempted && pause_state_ != PauseState::kPausedAll) co_await schedule_waiting(plan);

  SchedulerOutput output = build_output(plan);
  if (config_.encode_ahead) plan_encode_ahead(plan, output);
  if (ec_connector_ != nullptr) start_encoder_loads(plan);
  if (config_.has_block_ops) {
    GetBlockOps question{take_kv_updates()};
    BlockOps ops = co_await kv_cache_.get_block_ops(std::move(question));
    output.blocks_to_zero = std::move(ops.blocks_to_zero);
    output.block_copies = std::move(ops.block_copies);
    num_free_blocks_ = ops.num_free_blocks;
  }
  // Outputs encoded by an encoder-decoder model are reported as freed one step later.
  encoder_cache_touched_ |= config_.encoder_decoder;
  if (std::exchange(encoder_cache_touched_, false)) {
    TakeFreedEncoderOutputs question{take_encoder_updates()};
    FreedEncoderOutputs freed = co_await encoder_cache_->take_freed(std::move(question));
    output.free_encoder_identifiers = std::move(freed.identifiers);
  }
  output.reset_encoder_cache = std::exchange(encoder_cache_reset_, false);
  if (plan.scheduled.empty() && !kv_updates_.empty()) {
    // No blocks were requested: the statistics still need what finished requests have freed.
    AllocateSlots question{.updates = take_kv_updates()};
    const SlotsAllocated answer = co_await kv_cache_.allocate(std::move(question));
    num_free_blocks_ = answer.num_free_blocks;
    num_pinned_blocks_ = answer.num_pinned_blocks;
    record_evicted(answer.evicted);
  }
  flush();
  advance_scheduled(plan, output);
  if (connector_ != nullptr)
    output.kv_connector_metadata = connector_->build_connector_metadata(output);
  if (ec_connector_ != nullptr)
    output.ec_connector_metadata = ec_connector_->build_connector_meta(output);
  co_return output;
}

/// A suspect is computed alone; the others stay where they are.
bool Scheduler::must_stand_back(const RequestState& request) const {
  const std::optional<RequestId> suspect = suspects_.current();
  return suspect && request.id != *suspect;
}

std::int32_t Scheduler::most_tokens(const Budget& budget) const {
  return std::min(budget.tokens, budget.input_rows - config_.speculative.draft_slots);
}

bool Scheduler::has_budget(const Budget& budget) const { return most_tokens(budget) > 0; }

void Scheduler::start_plan(StepPlan& plan, bool defer_prefills) {
  ++step_;
  plan.clear();
  encoder_lookups_pending_ = false;
  if (config_.states.block_size > 0) tell_kv(KVCacheCommandKind::kNewStep, RequestId{});
  const std::int32_t max_tokens = config_.max_num_scheduled_tokens > 0
                                      ? config_.max_num_scheduled_tokens
                                      : config_.max_num_batched_tokens;
  plan.budget.tokens = pause_state_ == PauseState::kPausedAll ? 0 : max_tokens;
  plan.budget.input_rows = config_.max_num_batched_tokens;
  plan.budget.encoder_embeds = config_.max_encoder_embeds;
  plan.defer_prefills =
      defer_prefills && !prefill_capacity_bound_ &&
      std::any_of(running_.begin(), running_.end(),
                  [](const RequestState* request) { return !request->is_prefill_chunk; });
  const auto num_requests = static_cast<std::int32_t>(running_.size()) + num_waiting_requests();
  if (num_requests > 1 && config_.long_prefill_token_threshold > 0) {
    plan.long_prefill_threshold = config_.long_prefill_token_threshold;
    if (config_.long_prefill_adaptive)
      plan.long_prefill_threshold =
          std::max(plan.long_prefill_threshold, plan.budget.input_rows / num_requests);
  }
}

std::int32_t Scheduler::keep_prefill_lookahead(const RequestState& request,
                                               std::int32_t num_computed,
                                               std::int32_t num_new) const {
  const std::int32_t lookahead = config_.speculative.num_prefill_lookahead;
  const std::int32_t rest = request.num_tokens() - num_computed - num_new;
  if (rest > 0 && rest < lookahead) num_new = std::max(num_new - (lookahead - rest), 0);
  return num_new;
}

// ---- the step's result --------------------------------------------------------------------------

void Scheduler::plan_drafts(const StepPlan& step, SchedulerOutput& output) {
  const SpeculativeConfig& speculative = config_.speculative;
  const std::size_t num_scheduled = output.scheduled_ids.size();
  output.num_drafts_to_make = speculative.dynamic_lookup.empty() || num_scheduled == 0
                                  ? speculative.num_draft_tokens
                                  : speculative.dynamic_lookup[num_scheduled];
  if (!speculative.adaptive || num_scheduled == 0) return;
  const auto is_undrafted = [](const ScheduledRequest& entry) {
    return entry.request->is_undrafted;
  };
  // A draft model or head computes, and has slots for it; a head reads ahead of the model.
  const DraftBudget::Plan plan = draft_budget_.next(
      {.num_requests = static_cast<std::int32_t>(num_scheduled),
       .num_tokens = output.total_num_scheduled_tokens,
       .max_drafts =
           std::ranges::all_of(step.scheduled, is_undrafted) ? 0 : output.num_drafts_to_make,
       .computes = speculative.num_lookahead_tokens > 0,
       .catches_up = speculative.num_prefill_lookahead == 0});
  output.num_drafts_to_make = plan.num_drafts;
  output.max_draft_rows = plan.max_rows;
}

SchedulerOutput Scheduler::build_output(const StepPlan& plan) {
  SchedulerOutput output;
  output.step = step_;
  const std::size_t num_scheduled = plan.scheduled.size();
  output.scheduled_ids.reserve(num_scheduled);
  output.num_scheduled_tokens.reserve(num_scheduled);
  output.cached_requests.ids.reserve(num_scheduled);
  output.cached_requests.num_computed_tokens.reserve(num_scheduled);
  output.cached_requests.num_output_tokens.reserve(num_scheduled);
  for (const ScheduledRequest& entry : plan.scheduled) {
    const RequestState& request = *entry.request;
    output.scheduled_ids.push_back(request.id);
    output.num_scheduled_tokens.push_back(entry.num_tokens);
    output.total_num_scheduled_tokens += entry.num_tokens;
    for (const std::int32_t item : entry.encoder_items.of(plan.encoder_items))
      output.scheduled_encoder_inputs.emplace_back(request.id, item);
    if (entry.origin != ScheduledAs::kRunning) continue;
    CachedRequestData& cached = output.cached_requests;
    cached.ids.push_back(request.id);
    cached.num_computed_tokens.push_back(request.num_computed_tokens);
    cached.num_output_tokens.push_back(request.num_output_tokens() +
                                       request.num_output_placeholders);
  }
  CHECK(running_.size() <= static_cast<std::size_t>(config_.max_num_seqs), running_.size());
  plan_drafts(plan, output);

  if (!plan.drafts.empty()) {
    for (const ScheduledRequest& entry : plan.scheduled) {
      const auto drafts = entry.drafts.of(plan.drafts);
      output.num_draft_tokens.push_back(static_cast<std::int32_t>(drafts.size()));
      output.draft_token_ids.insert(output.draft_token_ids.end(), drafts.begin(), drafts.end());
    }
  }
  std::size_t num_groups = 0;
  for (const ScheduledRequest& entry : plan.scheduled)
    if (entry.origin == ScheduledAs::kRunning && entry.block_counts.size > 0)
      num_groups = entry.block_counts.size;
  if (num_groups > 0) {
    CachedRequestData& cached = output.cached_requests;
    for (const ScheduledRequest& entry : plan.scheduled) {
      if (entry.origin != ScheduledAs::kRunning) continue;
      const auto counts = entry.block_counts.of(plan.block_counts);
      const auto blocks = entry.blocks.of(plan.blocks);
      cached.new_block_counts.insert(cached.new_block_counts.end(), counts.begin(), counts.end());
      cached.new_block_counts.resize(cached.new_block_counts.size() + num_groups - counts.size());
      cached.new_block_ids.insert(cached.new_block_ids.end(), blocks.begin(), blocks.end());
    }
  }
  for (const ScheduledAs origin : {ScheduledAs::kNew, ScheduledAs::kResumed}) {
    for (const ScheduledRequest& entry : plan.scheduled) {
      if (entry.origin != origin) continue;
      const RequestState& request = *entry.request;
      NewRequestData& data = output.new_requests.emplace_back();
      data.id = request.id;
      data.token_ids = request.token_ids;
      data.num_prompt_tokens = request.num_prompt_tokens;
      data.params = request.params;
      data.num_computed_tokens = request.num_computed_tokens;
      data.mm_features = request.mm_features;
      data.lora = request.lora;
      data.second_text_begin = request.second_text_begin;
      auto next = entry.blocks.of(plan.blocks).begin();
      for (const std::int32_t n : entry.block_counts.of(plan.block_counts)) {
        data.block_ids.emplace_back(next, next + n);
        next += n;
      }
      output.num_resumed_requests += origin == ScheduledAs::kResumed;
    }
  }
  output.has_sync_kv_loads = plan.has_sync_kv_loads;
  output.finished_ids = std::exchange(finished_ids_, {});
  output.preempted_ids = std::exchange(preempted_ids_, {});
  return output;
}

void Scheduler::advance_scheduled(const StepPlan& plan, SchedulerOutput& output) {
  if (!plan.scheduled.empty()) {
    ++fence_;
    draft_budget_.on_planned(now_);
  }
  for (const ScheduledRequest& entry : plan.scheduled) {
    RequestState& request = *entry.request;
    request.num_computed_tokens += entry.num_tokens;
    request.num_in_flight_tokens += entry.num_tokens;
    charge(request, request.num_computed_tokens);
    request.is_prefill_chunk =
        request.num_computed_tokens < request.num_tokens() + request.num_output_placeholders;
    request.last_fence = fence_;
    if (request.is_prefill_chunk) continue;
    if (connector_ != nullptr) unfinished_prefills_.erase(&request);
    output.has_structured_output_requests |= request.grammar != nullptr;
    if (!config_.async_scheduling) continue;
    output.pending_structured_output_tokens |=
        request.grammar != nullptr && request.num_output_placeholders > 0;
    request.num_output_placeholders +=
        (config_.pooling ? 0 : 1) + static_cast<std::int32_t>(entry.drafts.size);
    request.draft_token_ids.assign(
        request.is_undrafted ? 0 : static_cast<std::size_t>(output.num_drafts_to_make), -1);
    if (config_.stagger_decodes)
      request.next_decode_step = step_ + static_cast<std::uint64_t>(config_.pipeline_parallel_size);
  }
}

// ---- cache updates ------------------------------------------------------------------------------

void Scheduler::tell_kv(KVCacheCommandKind kind, RequestId id, std::int32_t count) {
  kv_updates_.commands.push_back({kind, id, count});
}

void Scheduler::tell_encoder(EncoderCacheCommandKind kind, const RequestState& request,
                             std::int32_t value) {
  encoder_updates_.commands.push_back({kind, request.id, value});
}

KVCacheUpdates Scheduler::take_kv_updates() { return std::exchange(kv_updates_, {}); }

EncoderCacheUpdates Scheduler::take_encoder_updates() {
  return std::exchange(encoder_updates_, {});
}

void Scheduler::flush() {
  if (!kv_updates_.empty()) kv_cache_.send(take_kv_updates());
  if (!encoder_updates_.empty() && encoder_cache_ != nullptr)
    encoder_cache_->send(take_encoder_updates());
}

Task<bool> Scheduler::reset_prefix_cache(bool preempt_running, double now, bool reset_connector) {
  now_ = now;
  if (!ended_.empty()) co_await release_ended();
  while (drop_kept(/*pins_too=*/true)) {
  }
  if (preempt_running) {
    while (!running_.empty()) {
      RequestState& last = *running_.back();
      running_.pop_back();
      preempt(last, /*drop_output=*/true);
    }
  }
  ResetPrefixCache question{take_kv_updates()};
  const PrefixCacheReset answer = co_await kv_cache_.reset(std::move(question));
  num_free_blocks_ = answer.num_free_blocks;
  prefix_stats_.reset |= answer.ok;
  // With all requests preempted only transfers hold blocks; the connector's cache then stays, too.
  const bool failed = preempt_running && !answer.ok;
  if (failed || !reset_connector || connector_ == nullptr) co_return answer.ok;
  const bool connector_ok = connector_->reset_cache();
  connector_stats_.reset |= connector_ok;
  co_return answer.ok&& connector_ok;
}

Result<void> Scheduler::start_cache_move(const MoveCache& what) {
  if (connector_ == nullptr)
    return Error{ErrorCode::kUnsupported,
                 "there is no KV connector that stores blocks: prefix-cache-snapshot or "
                 "kv-transfer-config has to name one",
                 {}};
  if (connector_->is_moving())
    return Error{ErrorCode::kUnavailable, "another export or import of the cache is running", {}};
  return connector_->start_move(what);
}

EngineCoreOutputs Scheduler::blame_failed_step(const SchedulerOutput& step, const Error& error,
                                               double now) {
  EngineCoreOutputs outputs;
  outputs.engine_index = config_.engine_index;
  outputs.time = now;
  const std::optional<RequestId> blamed = suspects_.record_failure(step.scheduled_ids);
  log_warning("step failed", kv("step", step.step), kv("requests", step.scheduled_ids.size()),
              kv("failures", suspects_.num_failures()), kv("suspects", suspects_.size()),
              kv("error", error.message));
  if (!blamed) return outputs;
  log_warning("request failed while running alone", kv("id", value(*blamed)),
              kv("error", error.message));
  // The client may have disconnected meanwhile: then its end was already reported.
  if (finish_requests({&*blamed, 1}, RequestStatus::kFinishedError).empty()) return outputs;
  outputs.outputs.push_back({.id = *blamed, .finish_reason = FinishReason::kError, .error = error});
  return outputs;
}

Task<bool> Scheduler::recover_from_failed_steps(std::span<const SchedulerOutput> steps,
                                                double now) {
  for (const SchedulerOutput& step : steps) {
    for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
      const auto known = requests_.find(step.scheduled_ids[i]);
      if (known == requests_.end()) continue;
      RequestState& request = *known->second;
      request.num_in_flight_tokens -= step.num_scheduled_tokens[i];
      if (request.num_stale_tokens > 0) request.num_stale_tokens -= step.num_scheduled_tokens[i];
    }
    // A worker that failed may not have read them.
    finished_ids_.insert(finished_ids_.end(), step.finished_ids.begin(), step.finished_ids.end());
    if (step.total_num_scheduled_tokens > 0) pass_fence();
  }
  if (connector_ != nullptr) connector_->on_failed_steps();
  draft_budget_.on_failed();
  ahead_.reset();  // the workers may not have it
  reset_encoder_cache();
  const bool ok = co_await reset_prefix_cache(/*preempt_running=*/true, now);
  co_return ok;
}

void Scheduler::reset_encoder_cache() {
  if (encoder_cache_ == nullptr) return;
  encoder_updates_.commands.push_back({EncoderCacheCommandKind::kReset, RequestId{}, 0});
  encoder_cache_touched_ = true;
  encoder_cache_reset_ = true;
}

// ---- queries ------------------------------------------------------------------------------------

std::int32_t Scheduler::num_unfinished_requests() const {
  if (pause_state_ == PauseState::kPausedAll) return 0;
  std::size_t n = running_.size() + holding_.size();
  if (pause_state_ == PauseState::kUnpaused) n += waiting_.size();
  return static_cast<std::int32_t>(n) - num_waiting_for_chunk_;
}

bool Scheduler::has_requests() const {
  return num_unfinished_requests() > 0 || !finished_ids_.empty() || !ended_.empty() ||
         num_holding_after_end_ > 0 || !delayed_releases_.empty() || is_moving_cache();
}

bool Scheduler::is_blocked() const {
  // Not if a finished request is not reported yet, or a request alternates between batches.
  return failures_.empty() && lookup_answers_.empty() && finished_ids_.empty() && ended_.empty() &&
         std::none_of(running_.begin(), running_.end(), [this](const RequestState* request) {
           return request->next_decode_step > step_;
         });
}

const RequestState* Scheduler::request(RequestId id) const {
  const auto known = requests_.find(id);
  return known == requests_.end() ? nullptr : known->second.get();
}

}  // namespace troupe
