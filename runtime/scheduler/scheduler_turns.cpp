// Fairness: service of tenants, and bounded overtaking of requests for blocks and adapter slots.

#include <algorithm>

#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {
namespace {

/// Each costs a query to the KVCacheManager, in every step, until it fits.
constexpr std::size_t kMaxPassedByPerStep = 8;

}  // namespace

/// The request waits or runs from now on, and counts among its tenant's requests.
void Scheduler::enter_turns(RequestState& request) {
  if (config_.policy != SchedulingPolicy::kFair || request.takes_turns) return;
  request.takes_turns = true;
  fair_share_.enter(request.tenant);
}

void Scheduler::leave_turns(RequestState& request) {
  if (!request.takes_turns) return;
  request.takes_turns = false;
  fair_share_.leave(request.tenant);
}

/// Each token is charged once: neither prefix-cache hits nor recomputation after a preemption.
/// Rejected drafts were charged in advance.
void Scheduler::charge(RequestState& request, std::int32_t num_computed_tokens) {
  if (config_.policy != SchedulingPolicy::kFair) return;
  const std::int32_t paid = request.num_charged_tokens;
  if (num_computed_tokens <= paid) return;
  const std::int32_t prompt = request.num_prompt_tokens;
  fair_share_.serve(request.tenant, std::min(num_computed_tokens, prompt) - std::min(paid, prompt),
                    std::max(num_computed_tokens, prompt) - std::max(paid, prompt));
  request.num_charged_tokens = num_computed_tokens;
}

/// Bounded bypass: after being overtaken max_queue_bypasses times it blocks the queue, until
/// requests before it have finished and it fits.
bool Scheduler::may_be_passed(const RequestState& request, const StepPlan& plan) const {
  return request.num_bypasses < config_.max_queue_bypasses &&
         plan.passed_by.size() < kMaxPassedByPerStep;
}

/// A request needs one of max_loras slots for its adapter. Those that find none are passed by;
/// after max_lora_bypasses admissions past one of them, no request with an adapter is admitted
/// after it, so that the running ones end and free a slot.
bool Scheduler::waits_for_adapter_slot(RequestState& request, StepPlan& plan) const {
  if (config_.max_loras == 0 || !request.lora) return false;
  if (plan.adapter_slots_drain) return true;
  const auto& loras = plan.loras;
  if (static_cast<std::int32_t>(loras.size()) < config_.max_loras ||
      std::find(loras.begin(), loras.end(), request.lora->int_id) != loras.end())
    return false;
  if (config_.max_lora_bypasses > 0) {
    plan.without_adapter_slot.push_back(&request);
    plan.adapter_slots_drain = request.num_bypasses >= config_.max_lora_bypasses;
  }
  return true;
}

/// A request was admitted before those in plan.passed_by and, if it has an adapter, before those in
/// plan.without_adapter_slot. False: one of plan.passed_by may not be overtaken again.
bool Scheduler::count_bypass(StepPlan& plan, const RequestState& admitted) const {
  if (admitted.lora) {
    for (RequestState* const request : plan.without_adapter_slot)
      plan.adapter_slots_drain |= ++request->num_bypasses >= config_.max_lora_bypasses;
  }
  bool may_go_on = true;
  for (RequestState* const request : plan.passed_by)
    may_go_on &= ++request->num_bypasses < config_.max_queue_bypasses;
  return may_go_on;
}

}  // namespace troupe
