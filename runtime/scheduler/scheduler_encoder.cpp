// Encoder inputs: which items of a prompt a step needs encoded.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {

bool Scheduler::encoder_window_has_items(const RequestState& request, std::int32_t num_computed,
                                         std::int32_t num_new) const {
  if (num_new <= 0) return false;
  const std::int32_t end = num_computed + num_new + config_.speculative.num_prefill_lookahead;
  return std::any_of(request.mm_features.begin(), request.mm_features.end(),
                     [&](const MultiModalFeature& item) {
                       return item.offset < end && item.offset + item.length > num_computed;
                     });
}

Task<EncoderInputsPlanned> Scheduler::plan_encoder_inputs(const RequestState& request,
                                                          std::int32_t num_new,
                                                          std::int32_t num_computed,
                                                          const Budget& budget) {
  CHECK(encoder_cache_ != nullptr, value(request.id));
  encoder_cache_touched_ = true;
  PlanEncoderInputs question{.updates = take_encoder_updates(),
                             .id = request.id,
                             .num_computed_tokens = num_computed,
                             .num_new_tokens = num_new,
                             .shift = config_.speculative.num_prefill_lookahead,
                             .max_new_tokens = std::max(num_new, most_tokens(budget)),
                             .budget = budget.encoder_embeds};
  EncoderInputsPlanned answer = co_await encoder_cache_->plan(std::move(question));
  if (answer.mismatch)
    failures_.emplace_back(
        request.id,
        invalid_argument("one multimodal identifier is used for items of different sizes"));
  co_return answer;
}

void Scheduler::commit_encoder_inputs(StepPlan& plan, ScheduledRequest& entry,
                                      const EncoderInputsPlanned& inputs) {
  const std::size_t num_hits =
      static_cast<std::size_t>(inputs.num_cached) + inputs.duplicates.size();
  encoder_stats_.queries += num_hits + inputs.items.size();
  encoder_stats_.hits += num_hits;
  if (inputs.items.empty() && inputs.duplicates.empty()) return;
  entry.encoder_items = StepPlan::append(plan.encoder_items, inputs.items);
  entry.num_embeds = inputs.num_embeds;
  plan.budget.encoder_embeds -= inputs.num_embeds;
  for (const std::int32_t item : inputs.items)
    tell_encoder(EncoderCacheCommandKind::kAllocate, *entry.request, item);
  for (const std::int32_t item : inputs.duplicates)
    tell_encoder(EncoderCacheCommandKind::kAllocate, *entry.request, item);
}

}  // namespace troupe
