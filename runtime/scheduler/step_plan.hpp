#pragma once
// A step that is being planned. Private to the Scheduler's own files.

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "messages/ids.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {

/// A range of one of the plan's flat arrays.
struct ArrayRange {
  std::size_t begin = 0;
  std::size_t size = 0;
  template <class T>
  [[nodiscard]] std::span<const T> of(const std::vector<T>& array) const {
    return std::span(array).subspan(begin, size);
  }
};

enum class ScheduledAs : std::uint8_t { kRunning, kNew, kResumed };

struct Scheduler::ScheduledRequest {
  RequestState* request = nullptr;
  ScheduledAs origin = ScheduledAs::kRunning;
  std::int32_t num_tokens = 0;
  std::int32_t num_embeds = 0;  ///< of encoder_items
  ArrayRange drafts;
  ArrayRange blocks;        ///< new ones; of admitted requests the whole table
  ArrayRange block_counts;  ///< of `blocks`, one per group; empty if there are none
  ArrayRange encoder_items;
  ArrayRange external_items;  ///< to load instead
};

/// The remaining budget of a step.
struct Scheduler::Budget {
  std::int32_t tokens = 0;
  std::int32_t input_rows = 0;  ///< of the model's input: tokens and draft slots
  std::int32_t encoder_embeds = 0;

  void take(std::int32_t num_tokens, std::int32_t draft_slots) {
    tokens -= num_tokens;
    input_rows -= num_tokens + draft_slots;
  }
  void give_back(std::int32_t num_tokens, std::int32_t draft_slots) {
    take(-num_tokens, -draft_slots);
  }
};

/// A running request that would compute num_tokens, if it gets blocks.
struct Scheduler::SizedRequest {
  RequestState* request = nullptr;
  std::int32_t num_tokens = 0;
  EncoderInputsPlanned encoder;
};

struct Scheduler::StepPlan {
  Budget budget;
  std::int32_t long_prefill_threshold = 0;  ///< 0: none
  bool defer_prefills = false;
  bool preempted = false;                   ///< a request was preempted in this step
  bool has_sync_kv_loads = false;           ///< of external tokens, by admitted requests
  bool prefill_scheduled = false;           ///< a running request in mid-prefill was scheduled
  std::vector<ScheduledRequest> scheduled;  ///< in scheduling order
  std::vector<std::int32_t> loras;          ///< distinct adapters of the scheduled requests

  std::vector<TokenId> drafts;
  std::vector<BlockId> blocks;
  std::vector<std::int32_t> block_counts;
  std::vector<std::int32_t> encoder_items;
  std::vector<std::int32_t> external_items;

  std::vector<SizedRequest> batch;   ///< of the running loop: requested together
  std::size_t num_blocks_taken = 0;  ///< of the answer's, by the requests of `batch` so far
  std::vector<RequestState*> skipped_waiting;
  std::vector<RequestState*> skipped_holding;
  std::vector<RequestState*> passed_by;             ///< for lack of blocks
  std::vector<RequestState*> without_adapter_slot;  ///< passed by, too
  bool adapter_slots_drain = false;                 ///< no more requests with adapters are admitted
  std::vector<RequestState*> displaced;             ///< preempted for a more urgent waiting request

  void clear() {
    budget = {};
    long_prefill_threshold = 0;
    defer_prefills = preempted = prefill_scheduled = has_sync_kv_loads = false;
    adapter_slots_drain = false;
    scheduled.clear(), loras.clear(), drafts.clear(), blocks.clear(), block_counts.clear();
    encoder_items.clear(), external_items.clear(), batch.clear();
    skipped_waiting.clear(), skipped_holding.clear(), passed_by.clear(), displaced.clear();
    without_adapter_slot.clear();
  }
  template <class T>
  [[nodiscard]] static ArrayRange append(std::vector<T>& array,
                                         std::span<const std::type_identity_t<T>> part) {
    const ArrayRange slice{array.size(), part.size()};
    array.insert(array.end(), part.begin(), part.end());
    return slice;
  }
};

}  // namespace troupe
