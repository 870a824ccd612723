// Splits prefills of models with Mamba layers, so that steps end where states can be cached.

#include "runtime/scheduler/scheduler.hpp"

namespace troupe {

/// How many of num_new tokens from num_computed on to compute: a prefill stops at block boundaries,
/// and at positions where a later request may start. 0: it waits for a larger budget.
std::int32_t Scheduler::cut_at_state(const RequestState& request, std::int32_t num_computed,
                                     std::int32_t num_new) const {
  const StatePositions& states = config_.states;
  const std::int32_t begin = num_computed, block = states.block_size;
  const std::int32_t prompt = request.num_prompt_tokens;
  const std::int32_t prefill_end = std::max(prompt, request.num_tokens() - 1);
  if (block == 0 || num_new <= 0 || begin >= prefill_end) return num_new;
  std::int32_t end = begin + num_new;

  std::int32_t last = states.last_hit(request.num_tokens(), block);
  const bool checkpointed =
      end >= prefill_end &&
      states.can_checkpoint(begin, end, states.last_hit(prefill_end, states.alignment), block,
                            states.checkpoint_alignment);
  if (checkpointed) last = 0;
  if (end < prefill_end) {
    const std::int32_t aligned = end / block * block;
    const std::int32_t threshold = config_.long_prefill_token_threshold;
    const std::int32_t budget = config_.max_num_scheduled_tokens > 0
                                    ? config_.max_num_scheduled_tokens
                                    : config_.max_num_batched_tokens;
    // A budget that is always smaller than a block must not block the request forever.
    if (aligned > begin || (block <= budget && (threshold <= 0 || block <= threshold)))
      end = aligned;
  }
  const std::int32_t limit = end;
  const auto stop_at = [&](std::int32_t position) {
    if (begin < position && position < limit) end = std::min(end, position);
  };
  if (begin % block != 0 && !checkpointed) stop_at((begin / block + 1) * block);
  stop_at(last);
  const std::int32_t tail = states.last_hit(prompt, states.hash_unit);
  if (states.partial_hits && !checkpointed && last < tail && tail < prompt) stop_at(tail);
  const std::int32_t junction = request.shared_prefix_boundary;
  if (begin < junction && junction < limit)
    stop_at(states.keep_junction && junction <= prompt
                ? junction
                : begin + (junction - begin) / block * block);
  return std::max(end - begin, 0);
}

}  // namespace troupe
