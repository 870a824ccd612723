// Second half of a step: admission of waiting requests.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {

/// What a waiting request would compute.
struct Scheduler::SizedAdmission {
  std::int32_t num_tokens = 0;
  std::int32_t num_padding_drafts = 0;  ///< -1 each: pads a decode to the width of the others
  EncoderInputsPlanned encoder;
};

/// The part that need not be computed.
struct Scheduler::PrefixLookup {
  bool use_hit = false;  ///< the KVCacheManager was queried
  std::int32_t num_local_tokens = 0;
  std::int32_t num_external_tokens = 0;  ///< after them, from the KV connector
  bool async = false;                    ///< loaded asynchronously
  std::int32_t num_blended = 0;          ///< of those that are computed
  bool counts = false;                   ///< in the statistics
};

namespace {

BlockTable block_table_of(const RequestAdmitted& answer) {
  BlockTable table;
  auto next = answer.block_ids.begin();
  for (const std::int32_t n : answer.block_counts) {
    table.emplace_back(next, next + n);
    next += n;
  }
  return table;
}

}  // namespace

/// Head first; the first request that does not fit ends the scan, so that it is not starved by
/// smaller ones after it, unless it may be overtaken (max_queue_bypasses). Requests that cannot run
/// yet are skipped and keep their position.
Task<bool> Scheduler::schedule_waiting(StepPlan& plan) {
  const std::int32_t max_active =
      config_.max_num_active_seqs > 0 ? config_.max_num_active_seqs : config_.max_num_seqs;
  while (has_budget(plan.budget)) {
    RequestQueue* queue = &holding_;
    if (queue->empty() && pause_state_ == PauseState::kUnpaused) queue = &waiting_;
    if (queue->empty()) break;
    const bool is_full =
        static_cast<std::int32_t>(running_.size()) + num_waiting_for_chunk_ >= max_active;
    if (is_full && !config_.priority_preemption) break;

    RequestState& request = *queue->front();
    if (std::find(plan.displaced.begin(), plan.displaced.end(), &request) != plan.displaced.end())
      break;
    const bool held_blocks = request.holds_kv();
    Admission admission = Admission::kSkip;
    if (!must_keep_waiting(request, plan)) {
      if (is_full && !preempt_for(plan, request)) break;
      admission = co_await admit(plan, request);
    }
    if (admission == Admission::kStop) break;
    if (admission == Admission::kDoesNotFit) {
      if (drop_kept(/*pins_too=*/running_.empty()) || preempt_for(plan, request)) continue;
      if (!may_be_passed(request, plan)) break;
      plan.passed_by.push_back(&request);
    }
    queue->remove(&request);
    if (admission == Admission::kAdmitted) {
      if (request.deferred) --num_deferred_;
      request.deferred = false;
      running_.push_back(&request);
      request.has_blocks = true;
    } else {
      if (admission == Admission::kSkip) defer(request);
      (request.holds_kv() ? plan.skipped_holding : plan.skipped_waiting).push_back(&request);
    }
    // A request whose KV is loaded asynchronously has its blocks, too.
    const bool got_blocks =
        admission == Admission::kAdmitted || (!held_blocks && request.holds_kv());
    if (got_blocks && !count_bypass(plan, request)) break;
  }
  holding_.prepend(plan.skipped_holding);
  waiting_.prepend(plan.skipped_waiting);
  if (!plan.defer_prefills) prefill_capacity_bound_ = num_waiting_requests() > num_deferred_;
  co_return true;
}

bool Scheduler::must_keep_waiting(RequestState& request, StepPlan& plan) {
  if (request.only_looks_up) return true;
  if (must_stand_back(request)) return true;
  if (request.status == RequestStatus::kWaitingForStreamingRequest) return true;
  if (waits_for_remote_kvs(request) || waits_for_grammar(request)) return true;
  // Its late results have to be delivered before those of its new run.
  if (request.num_stale_tokens > 0 && !request.drop_stale_output) return true;
  return waits_for_adapter_slot(request, plan);
}

/// nullopt: it cannot be admitted in this step.
std::optional<Scheduler::SizedAdmission> Scheduler::size_admission(const RequestState& request,
                                                                   std::int32_t num_computed,
                                                                   const StepPlan& plan) const {
  const SpeculativeConfig& speculative = config_.speculative;
  SizedAdmission sized{.num_tokens = request.num_tokens() - num_computed};
  if (plan.defer_prefills && sized.num_tokens > 1) return std::nullopt;
  const std::int32_t budget = most_tokens(plan.budget);
  const std::int32_t num_drafts = speculative.num_draft_tokens;
  const bool others_decode =
      !plan.prefill_scheduled &&
      (!plan.scheduled.empty() && plan.scheduled[0].origin == ScheduledAs::kRunning);
  const bool may_pad = num_drafts > 0 && speculative.dynamic_lookup.empty() && !config_.pooling &&
                       sized.num_tokens == 1 && !plan.prefill_scheduled &&
                       (others_decode || num_computed > 0) &&
                       num_computed + 1 + num_drafts + 1 <= config_.max_model_len;
  if (may_pad) {
    sized.num_tokens = 1 + num_drafts;
    sized.num_padding_drafts = num_drafts;
    if (sized.num_tokens > budget) return std::nullopt;
  }
  if (plan.long_prefill_threshold > 0)
    sized.num_tokens = std::min(sized.num_tokens, plan.long_prefill_threshold);
  if (!config_.enable_chunked_prefill && sized.num_tokens > budget) return std::nullopt;
  sized.num_tokens = std::min(sized.num_tokens, budget);
  const std::int32_t num_uncut = sized.num_tokens;
  sized.num_tokens = cut_at_state(request, num_computed, num_uncut);
  if (sized.num_tokens <= 0) return std::nullopt;
  if (sized.num_padding_drafts > 0 && sized.num_tokens < num_uncut) {
    sized.num_tokens = 1;
    sized.num_padding_drafts = 0;
  }
  return sized;
}

namespace {

/// Of an earlier lookup, whose load has failed.
void forget_sources(PrefillStats& stats) {
  stats.num_host_cached_tokens = stats.num_disk_cached_tokens = 0;
  stats.num_peer_cached_tokens = stats.num_remote_cached_tokens = 0;
}

void count_source(PrefillStats& stats, KVConnector::Medium medium) {
  const std::int32_t count = stats.num_external_cached_tokens;
  switch (medium) {
    case KVConnector::Medium::kHost:
      stats.num_host_cached_tokens = count;
      return;
    case KVConnector::Medium::kDisk:
      stats.num_disk_cached_tokens = count;
      return;
    case KVConnector::Medium::kPeer:
      stats.num_peer_cached_tokens = count;
      return;
    case KVConnector::Medium::kRemote:
      stats.num_remote_cached_tokens = count;
      return;
  }
}

}  // namespace

/// The local cache hit, and the tokens that the KV connector can load after it. False: its lookup
/// is pending.
Task<bool> Scheduler::look_up(RequestState& request, PrefixLookup& lookup) {
  request.shared_prefix_boundary = 0;
  lookup.counts = !request.params.skip_reading_prefix_cache;
  if (config_.prefix_caching && lookup.counts) {
    LookupPrefix question{take_kv_updates(), request.id};
    const PrefixHit hit = co_await kv_cache_.lookup(std::move(question));
    request.shared_prefix_boundary = hit.shared_prefix_boundary;
    lookup.num_local_tokens = hit.num_tokens;
    lookup.use_hit = true;
  }
  if (connector_ != nullptr) {
    const std::int32_t num_tail = lookup.num_local_tokens % config_.kv_transfer.block_size;
    const std::int32_t num_blocks_only = lookup.num_local_tokens - num_tail;
    const auto match = connector_->get_num_new_matched_tokens(request, num_blocks_only);
    if (!match) co_return false;
    // A synchronous load leaves the last token: its logits are needed.
    const std::int32_t num_wanted = request.num_tokens() - num_blocks_only - (match->async ? 0 : 1);
    const std::int32_t num_external = std::min(match->num_tokens, num_wanted);
    // A hit that ends inside a block is replaced by a load that covers more.
    if (lookup.counts && num_external > num_tail) {
      lookup.num_local_tokens = num_blocks_only;
      lookup.num_external_tokens = num_external;
      lookup.async = match->async;
    }
    request.kv_load = lookup.async ? KVLoad::kToStart : KVLoad::kNone;
    if (lookup.counts && lookup.num_external_tokens == 0) lookup.num_blended = match->num_blended;
  }
  if (request.num_preemptions == 0 && request.prefill_stats) {
    request.prefill_stats->num_cached_tokens = lookup.num_local_tokens + lookup.num_external_tokens;
    request.prefill_stats->num_local_cached_tokens = lookup.num_local_tokens;
    request.prefill_stats->num_external_cached_tokens = lookup.num_external_tokens;
    forget_sources(*request.prefill_stats);
    if (lookup.num_external_tokens > 0)
      count_source(*request.prefill_stats, connector_->medium(request));
    // From no source, and not cached: they are computed, not all of them in all layers.
    request.prefill_stats->num_external_cached_tokens += lookup.num_blended;
  }
  co_return true;
}

namespace {

/// As kLookupParams says.
std::string lookup_answer(const PrefillStats& stats) {
  const nlohmann::ordered_json json = {
      {"num_tokens", stats.num_prompt_tokens},    {"device", stats.num_local_cached_tokens},
      {"host", stats.num_host_cached_tokens},     {"disk", stats.num_disk_cached_tokens},
      {"remote", stats.num_remote_cached_tokens}, {"peer", stats.num_peer_cached_tokens}};
  return json.dump();
}

}  // namespace

/// Of all requests that only ask, whatever is before them: they need no room. What the connector
/// does not know yet is asked for again in a later step.
Task<bool> Scheduler::look_up_prompts() {
  const std::vector<RequestId> asked = std::exchange(lookups_, {});
  for (const RequestId id : asked) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    RequestState& request = *known->second;
    PrefixLookup lookup;
    const bool is_known = co_await look_up(request, lookup);
    if (!is_known)
      lookups_.push_back(id);
    else
      lookup_answers_.emplace_back(id,
                                   lookup_answer(request.prefill_stats.value_or(PrefillStats{})));
  }
  co_return true;
}

namespace {

void count_lookup(PrefixCacheStats& stats, bool again, std::int32_t num_queries,
                  std::int32_t num_hits) {
  (again ? stats.preempted_requests : stats.requests) += 1;
  (again ? stats.preempted_queries : stats.queries) += static_cast<std::uint64_t>(num_queries);
  (again ? stats.preempted_hits : stats.hits) += static_cast<std::uint64_t>(num_hits);
}

}  // namespace

/// Only for requests that got their blocks, so that a repeated lookup is not counted twice.
void Scheduler::record_lookup(const RequestState& request, const PrefixLookup& lookup) {
  const bool again = request.num_preemptions > 0 || request.resubmitted;
  if (lookup.use_hit)
    count_lookup(prefix_stats_, again, request.num_tokens(), lookup.num_local_tokens);
  if (lookup.counts && connector_ != nullptr)
    count_lookup(connector_stats_, again, request.num_tokens() - lookup.num_local_tokens,
                 lookup.num_external_tokens);
}

Task<Scheduler::Admission> Scheduler::admit(StepPlan& plan, RequestState& request) {
  std::int32_t num_computed = request.num_computed_tokens;
  PrefixLookup lookup;
  if (num_computed == 0) {
    const bool decided = co_await look_up(request, lookup);
    if (!decided) co_return Admission::kSkip;
    num_computed = lookup.num_local_tokens + lookup.num_external_tokens;
    request.is_blended = lookup.num_blended > 0;
  }

  SizedAdmission sized;  // empty while its KV is not loaded
  if (!lookup.async) {
    const std::optional<SizedAdmission> prefill = size_admission(request, num_computed, plan);
    if (!prefill) co_return Admission::kStop;
    sized = *prefill;
    if (encoder_window_has_items(request, num_computed, sized.num_tokens)) {
      sized.encoder =
          co_await plan_encoder_inputs(request, sized.num_tokens, num_computed, plan.budget);
      sized.num_tokens = sized.encoder.num_new_tokens;
    }
    sized.num_tokens = keep_prefill_lookahead(request, num_computed, sized.num_tokens);
    if (sized.num_tokens <= 0)
      co_return sized.encoder.is_pending() ? Admission::kSkip : Admission::kStop;
  }

  AdmitRequest question{.updates = take_kv_updates(),
                        .id = request.id,
                        .num_computed_tokens = request.num_computed_tokens,
                        .num_in_flight_tokens = request.num_in_flight_tokens,
                        .num_hit_tokens = lookup.num_local_tokens,
                        .use_hit = lookup.use_hit,
                        .num_external_tokens = lookup.num_external_tokens,
                        .num_new_tokens = sized.num_tokens,
                        .delay_caching = lookup.async || request.is_blended,
                        .full_sequence_must_fit = config_.reserve_full_sequence,
                        .keep_watermark = !running_.empty()};
  if (config_.encoder_decoder) question.num_encoder_tokens = sized.encoder.num_embeds;
  if (lookup.async)
    reserve_for_prefills(question);
  else
    question.num_lookahead_tokens = config_.speculative.num_lookahead_tokens;
  const RequestAdmitted answer = co_await kv_cache_.admit(std::move(question));
  num_free_blocks_ = answer.num_free_blocks;
  num_pinned_blocks_ = answer.num_pinned_blocks;
  record_evicted(answer.evicted);
  if (!answer.fits) {
    if (!request.mm_features.empty()) tell_encoder(EncoderCacheCommandKind::kFreeAll, request);
    co_return Admission::kDoesNotFit;
  }
  if (connector_ != nullptr)
    connector_->update_state_after_alloc(request, block_table_of(answer),
                                         lookup.num_external_tokens);
  record_lookup(request, lookup);
  if (lookup.async) {
    start_load(request, num_computed);
    co_return Admission::kSkip;
  }
  plan.has_sync_kv_loads |= lookup.num_external_tokens > 0;
  commit_admission(plan, request, sized, num_computed, answer);
  co_return Admission::kAdmitted;
}

void Scheduler::commit_admission(StepPlan& plan, RequestState& request, const SizedAdmission& sized,
                                 std::int32_t num_computed, const RequestAdmitted& answer) {
  CHECK(request.status == RequestStatus::kWaiting || request.status == RequestStatus::kPreempted,
        static_cast<int>(request.status));
  request.events.push_back({EngineEventKind::kScheduled, now_});
  stop_queue_clock(request);
  request.num_cached_estimate = answer.num_cached_tokens;
  plan.budget.take(sized.num_tokens, config_.speculative.draft_slots);
  ScheduledRequest& entry = plan.scheduled.emplace_back();
  entry.request = &request;
  entry.origin =
      request.status == RequestStatus::kWaiting ? ScheduledAs::kNew : ScheduledAs::kResumed;
  entry.num_tokens = sized.num_tokens;
  entry.blocks = StepPlan::append(plan.blocks, answer.block_ids);
  entry.block_counts = StepPlan::append(plan.block_counts, answer.block_counts);
  if (sized.num_padding_drafts > 0) {
    const std::vector<TokenId> placeholders(static_cast<std::size_t>(sized.num_padding_drafts), -1);
    entry.drafts = StepPlan::append(plan.drafts, placeholders);
  }
  request.status = RequestStatus::kRunning;
  request.is_undrafted = false;
  request.num_hit_tokens = num_computed;
  request.num_bypasses = 0;
  request.num_charged_tokens = std::max(request.num_charged_tokens, num_computed);
  charge(request, num_computed + sized.num_tokens);
  request.num_computed_tokens = num_computed;
  request.kv_load = KVLoad::kNone;
  if (connector_ != nullptr && num_computed + sized.num_tokens < request.num_tokens())
    unfinished_prefills_.insert(&request);
  if (request.lora &&
      std::find(plan.loras.begin(), plan.loras.end(), request.lora->int_id) == plan.loras.end())
    plan.loras.push_back(request.lora->int_id);
  commit_encoder_inputs(plan, entry, sized.encoder);
}

}  // namespace troupe
