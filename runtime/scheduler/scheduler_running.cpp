// First half of a step: running requests.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {

bool Scheduler::skip_running(const RequestState& request, const StepPlan& plan) const {
  if (must_stand_back(request)) return true;
  // With the tokens in flight it is certain to reach max_tokens.
  if (request.num_output_placeholders > 0 &&
      request.num_computed_tokens + 2 - request.num_output_placeholders >=
          request.num_prompt_tokens + request.max_tokens)
    return true;
  if (step_ < request.next_decode_step) return true;
  return plan.defer_prefills && request.is_prefill_chunk;
}

std::int32_t Scheduler::size_running(const RequestState& request, const StepPlan& plan,
                                     const Budget& budget) const {
  std::int32_t n = request.num_tokens_with_drafts() + request.num_output_placeholders -
                   request.num_computed_tokens;
  if (plan.long_prefill_threshold > 0) n = std::min(n, plan.long_prefill_threshold);
  n = std::min(n, most_tokens(budget));
  const std::int32_t num_sampled = config_.pooling ? 0 : 1;
  return std::min(n, config_.max_model_len - request.num_computed_tokens - num_sampled);
}

/// Sizes the running requests from `index` on as if all of them got blocks, into plan.batch;
/// returns the index where it stopped. A request with encoder inputs is a batch of its own: the
/// EncoderCacheManager must be updated only after everything before it has got its blocks.
Task<std::size_t> Scheduler::size_batch(StepPlan& plan, std::size_t index) {
  plan.batch.clear();
  Budget budget = plan.budget;
  for (; index < running_.size() && has_budget(budget); ++index) {
    RequestState& request = *running_[index];
    if (skip_running(request, plan)) continue;
    draft_proposal(request);
    SizedRequest sized{
        &request,
        cut_at_state(request, request.num_computed_tokens, size_running(request, plan, budget)),
        {}};
    const bool has_items =
        encoder_window_has_items(request, request.num_computed_tokens, sized.num_tokens);
    if (has_items) {
      if (!plan.batch.empty()) break;
      sized.encoder = co_await plan_encoder_inputs(request, sized.num_tokens,
                                                   request.num_computed_tokens, budget);
      sized.num_tokens = sized.encoder.num_new_tokens;
    }
    sized.num_tokens =
        keep_prefill_lookahead(request, request.num_computed_tokens, sized.num_tokens);
    if (sized.num_tokens <= 0) continue;  // later requests may still run
    budget.take(sized.num_tokens, config_.speculative.draft_slots);
    plan.batch.push_back(std::move(sized));
    if (has_items) {
      ++index;
      break;
    }
  }
  co_return index;
}

Task<bool> Scheduler::schedule_running(StepPlan& plan) {
  std::size_t index = 0;
  while (index < running_.size() && has_budget(plan.budget)) {
    const std::size_t end = co_await size_batch(plan, index);
    if (plan.batch.empty()) {
      index = end;
      continue;
    }
    const SlotsAllocated answer = co_await ask_slots(plan.batch);
    record_evicted(answer.evicted);
    const auto num_allocated = static_cast<std::size_t>(answer.num_allocated);
    for (std::size_t i = 0; i < num_allocated; ++i) commit_running(plan, plan.batch[i], answer, i);
    if (num_allocated == plan.batch.size()) {
      index = end;
      continue;
    }
    const SizedRequest sized = std::move(plan.batch[num_allocated]);
    const bool runs = co_await preempt_until_it_fits(plan, sized);
    if (!runs) break;
    index = static_cast<std::size_t>(std::find(running_.begin(), running_.end(), sized.request) -
                                     running_.begin() + 1);
  }
  co_return true;
}

Reply<SlotsAllocated> Scheduler::ask_slots(std::span<const SizedRequest> batch) {
  AllocateSlots question{.updates = take_kv_updates(),
                         .num_lookahead_tokens = config_.speculative.num_lookahead_tokens};
  question.demands.reserve(batch.size());
  for (const SizedRequest& sized : batch)
    question.demands.push_back({sized.request->id, sized.num_tokens,
                                sized.request->num_computed_tokens,
                                sized.request->num_in_flight_tokens});
  return kv_cache_.allocate(std::move(question));
}

/// num_cached_tokens, after all updates so far.
Reply<SlotsAllocated> Scheduler::ask_num_cached(const RequestState& request) {
  AllocateSlots question{.updates = take_kv_updates(), .demands = {{.id = request.id}}};
  return kv_cache_.allocate(std::move(question));
}

/// Preempts others until `sized` gets its blocks. False: it was preempted itself, or must wait for
/// blocks that are about to become free.
Task<bool> Scheduler::preempt_until_it_fits(StepPlan& plan, const SizedRequest& sized) {
  while (true) {
    // A pin goes only when no other request could make room.
    if (!drop_kept(/*pins_too=*/running_.size() <= 1)) {
      if (connector_ != nullptr && connector_->has_pending_block_frees()) co_return false;
      RequestState* const victim = choose_victim();
      if (must_defer_free(*victim)) co_return false;
      preempt_running(plan, victim);
      plan.preempted = true;
      if (victim == sized.request) co_return false;
    }
    const SlotsAllocated answer = co_await ask_slots(std::span(&sized, 1));
    record_evicted(answer.evicted);
    if (answer.num_allocated == 1) {
      commit_running(plan, sized, answer, 0);
      co_return true;
    }
  }
}

void Scheduler::commit_running(StepPlan& plan, const SizedRequest& sized,
                               const SlotsAllocated& answer, std::size_t index) {
  RequestState& request = *sized.request;
  num_free_blocks_ = answer.num_free_blocks;
  num_pinned_blocks_ = answer.num_pinned_blocks;
  if (!answer.num_cached_tokens.empty() && answer.num_cached_tokens[index] >= 0)
    request.num_cached_estimate = answer.num_cached_tokens[index];
  plan.budget.take(sized.num_tokens, config_.speculative.draft_slots);
  plan.prefill_scheduled |= request.is_prefill_chunk;

  ScheduledRequest& entry = plan.scheduled.emplace_back();
  entry.request = &request;
  entry.num_tokens = sized.num_tokens;
  if (!answer.block_counts.empty()) {
    const std::size_t num_groups =
        answer.block_counts.size() / static_cast<std::size_t>(answer.num_allocated);
    const auto counts = std::span(answer.block_counts);
    if (index == 0) plan.num_blocks_taken = 0;
    std::size_t own = 0;
    const auto own_counts = counts.subspan(index * num_groups, num_groups);
    for (const std::int32_t n : own_counts) own += static_cast<std::size_t>(n);
    entry.blocks = StepPlan::append(
        plan.blocks, std::span(answer.block_ids).subspan(plan.num_blocks_taken, own));
    plan.num_blocks_taken += own;
    entry.block_counts = StepPlan::append(plan.block_counts, own_counts);
  }
  if (!request.draft_token_ids.empty()) {
    const std::int32_t num_drafts = sized.num_tokens + request.num_computed_tokens -
                                    request.num_tokens() - request.num_output_placeholders;
    if (num_drafts > 0)
      entry.drafts =
          StepPlan::append(plan.drafts, std::span<const TokenId>(request.draft_token_ids)
                                            .first(std::min(static_cast<std::size_t>(num_drafts),
                                                            request.draft_token_ids.size())));
    request.draft_token_ids.clear();
  }
  commit_encoder_inputs(plan, entry, sized.encoder);
}

}  // namespace troupe
