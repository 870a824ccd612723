// Preemption, for a running request that needs a block or a more urgent waiting request.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {
namespace {

/// The work lost by a preemption: the tokens that the request has computed since it was admitted.
/// Its prefix-cache hit is likely to be found again; its own cached blocks are the first to be
/// evicted, since the others need them.
std::int32_t lost_work(const RequestState& request) {
  return request.num_computed_tokens - request.num_hit_tokens;
}

}  // namespace

/// Under kPriority one of the least urgent requests, under kFair one of the most served tenant.
/// Among these the latest one or, with kLeastWork, the one that loses least. The request with the
/// most computed tokens is then never preempted, so that one always makes progress and finishes.
RequestState* Scheduler::choose_victim() const {
  CHECK(!running_.empty());
  const auto gives_way_before = [this](const RequestState& a, const RequestState& b) {
    const bool by_priority = config_.policy == SchedulingPolicy::kPriority;
    if (by_priority && a.priority != b.priority) return a.priority > b.priority;
    if (config_.policy == SchedulingPolicy::kFair && a.tenant != b.tenant) {
      const double served_a = fair_share_.served(a.tenant);
      const double served_b = fair_share_.served(b.tenant);
      if (served_a != served_b) return served_a > served_b;
    }
    if (config_.preemption_victim == PreemptionVictim::kLeastWork && lost_work(a) != lost_work(b))
      return lost_work(a) < lost_work(b);
    return !by_priority || a.arrival_time > b.arrival_time;
  };
  RequestState* victim = running_.front();
  for (RequestState* const request : running_)
    if (gives_way_before(*request, *victim)) victim = request;
  return victim;
}

/// Removes it from the step, if scheduled, and moves it back to the waiting queue.
void Scheduler::preempt_running(StepPlan& plan, RequestState* victim) {
  running_.erase(std::find(running_.begin(), running_.end(), victim));
  undo_scheduled(plan, victim);
  preempt(*victim, /*drop_output=*/false);
}

/// A waiting request lacks a slot or blocks: preempts a less urgent running one. False if there is
/// none. Requests of equal priority never preempt each other, so there are no cycles.
bool Scheduler::preempt_for(StepPlan& plan, const RequestState& urgent) {
  if (!config_.priority_preemption || config_.policy != SchedulingPolicy::kPriority) return false;
  if (running_.empty()) return false;
  if (connector_ != nullptr && connector_->has_pending_block_frees()) return false;
  RequestState* const victim = choose_victim();
  if (victim->priority <= urgent.priority || must_defer_free(*victim)) return false;
  const auto entry =
      std::find_if(plan.scheduled.begin(), plan.scheduled.end(),
                   [victim](const ScheduledRequest& other) { return other.request == victim; });
  // A request is not admitted and preempted in the same step.
  if (entry != plan.scheduled.end() && entry->origin != ScheduledAs::kRunning) return false;
  preempt_running(plan, victim);
  plan.displaced.push_back(victim);
  return true;
}

void Scheduler::undo_scheduled(StepPlan& plan, RequestState* victim) {
  const auto entry =
      std::find_if(plan.scheduled.begin(), plan.scheduled.end(),
                   [victim](const ScheduledRequest& other) { return other.request == victim; });
  if (entry == plan.scheduled.end()) return;
  plan.budget.give_back(entry->num_tokens, config_.speculative.draft_slots);
  plan.budget.encoder_embeds += entry->num_embeds;
  plan.scheduled.erase(entry);
}

}  // namespace troupe
