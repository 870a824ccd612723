#pragma once
// Configuration of the Scheduler.

#include <cstdint>
#include <vector>

#include "runtime/base/state_positions.hpp"

namespace troupe {

/// Order of the waiting queue: first come first served; most urgent first; or the least served
/// tenant first (FairShare).
enum class SchedulingPolicy : std::uint8_t { kFcfs, kPriority, kFair };

/// Which request to preempt when a running one needs a block and none is free: the latest one, or
/// the one with the least lost work (Scheduler::choose_victim).
enum class PreemptionVictim : std::uint8_t { kLast, kLeastWork };

struct SpeculativeConfig {
  std::int32_t num_draft_tokens = 0;  ///< K, 0: no speculative decoding
  /// Slots that the drafter writes beyond the scheduled tokens.
  std::int32_t num_lookahead_tokens = 0;
  /// Tokens that the drafter reads ahead of the model: the encoder runs that much earlier, and a
  /// prefill never leaves a remainder shorter than this.
  std::int32_t num_prefill_lookahead = 0;
  std::int32_t draft_slots = 0;  ///< extra input rows per request
  /// K by the number of scheduled requests (index 0 unused); empty: always num_draft_tokens.
  std::vector<std::int32_t> dynamic_lookup;
  bool adaptive = false;  ///< K is at most what DraftBudget thinks worth its cost
};

/// Roles of this engine in KV transfer.
struct KVTransferConfig {
  bool producer = false;  ///< others load KV from here: computed KV must be delivered
  bool consumer = false;  ///< KV is loaded instead of being computed
  /// Requests whose KV could not be loaded are recomputed here; otherwise they fail.
  bool recompute_failed_loads = false;
  /// Of the connector: external hits are looked up at its multiples; KVCacheSettings'.
  std::int32_t block_size = 0;
  std::int32_t num_groups = 1;  ///< of the KV cache
};

struct SchedulerConfig {
  std::int32_t max_model_len = 0;  ///< prompt and output together
  std::int32_t num_blocks = 0;     ///< of the KV cache, for the statistics
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_active_seqs = 0;  ///< admission limit; 0: max_num_seqs
  std::int32_t max_num_batched_tokens = 2048;
  std::int32_t max_num_scheduled_tokens = 0;  ///< 0: max_num_batched_tokens
  bool enable_chunked_prefill = true;
  /// Maximum prefill tokens per step and request; 0: no limit.
  std::int32_t long_prefill_token_threshold = 0;
  bool long_prefill_adaptive = false;  ///< the threshold is at least a fair share of the budget
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  /// Maximum number of requests that may overtake a waiting request that lacks blocks; then no
  /// other one is admitted before it. 0: none.
  std::int32_t max_queue_bypasses = 0;
  /// kPriority: waiting requests preempt less urgent running ones.
  bool priority_preemption = false;
  PreemptionVictim preemption_victim = PreemptionVictim::kLast;
  bool reserve_full_sequence = true;  ///< admit only requests whose whole prompt fits now
  bool prefix_caching = true;
  double session_ttl_s = 0;       ///< how long the blocks of a session's last request are kept
  bool async_scheduling = false;  ///< the next step is planned before the last one's result
  std::int32_t pipeline_parallel_size = 1;
  /// Decodes wait pipeline_parallel_size steps for their previous token (async only).
  bool stagger_decodes = true;
  std::uint32_t incarnation = 0;  ///< of the engine: every step carries it
  bool pooling = false;           ///< nothing is sampled, a request ends with its embedding
  SpeculativeConfig speculative;
  /// Jump-forward: likely tokens that a grammar may propose for a request and a step. Only without
  /// speculative decoding and without state groups, which keep a state behind each draft.
  std::int32_t max_proposed_tokens = 0;
  KVTransferConfig kv_transfer;  ///< only with a KVConnector
  std::int32_t max_loras = 0;    ///< distinct adapters in a step; 0: no limit
  /// Maximum number of requests with adapters that may overtake one whose adapter has no slot; then
  /// no other one is admitted before it. 0: any number.
  std::int32_t max_lora_bypasses = 0;
  std::int32_t max_encoder_embeds = 0;  ///< encoder budget of a step
  /// Items are encoded in slices during other steps, before the one that needs them.
  bool encode_ahead = false;
  std::int32_t encode_ahead_ms = 0;        ///< per step; at least one slice
  bool include_finished_requests = false;  ///< outputs list finished requests per client
  bool has_block_ops = false;              ///< Mamba groups: request GetBlockOps in each step
  /// Encoder inputs go into the cross-attention cache with a request's first step.
  bool encoder_decoder = false;
  StatePositions states;  ///< of Mamba layers: where prefills are split
  std::uint32_t engine_index = 0;

  /// Steps that may be open at once: planned, with results not yet processed.
  [[nodiscard]] std::int32_t max_concurrent_batches() const noexcept {
    if (!async_scheduling) return pipeline_parallel_size;
    if (stagger_decodes) return pipeline_parallel_size + 1;
    return pipeline_parallel_size > 1 ? pipeline_parallel_size : 2;
  }
};

}  // namespace troupe
