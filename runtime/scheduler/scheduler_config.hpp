#pragma once
// What the Scheduler is told at start.

#include <cstdint>
#include <vector>

#include "runtime/base/state_positions.hpp"

namespace troupe {

/// Whose turn it is among those that wait: first come first served; the most urgent; or, among
/// tenants, who has been served least (FairShare).
enum class SchedulingPolicy : std::uint8_t { kFcfs, kPriority, kFair };

/// Who gives its blocks back when a running request needs one and none is free: who came last, or
/// whose preemption costs least (Scheduler::choose_victim).
enum class PreemptionVictim : std::uint8_t { kLast, kLeastWork };

struct SpeculativeConfig {
  std::int32_t num_draft_tokens = 0;      ///< K, 0: no speculative decoding
  std::int32_t num_lookahead_tokens = 0;  ///< slots that the drafter writes beyond the tokens
  /// Tokens that the drafter sees ahead of the model: the encoder runs that much earlier, and a
  /// prefill never leaves a rest shorter than this.
  std::int32_t num_prefill_lookahead = 0;
  std::int32_t draft_slots = 0;  ///< extra input rows per request
  /// K by the number of scheduled requests (index 0 unused); empty: always num_draft_tokens.
  std::vector<std::int32_t> dynamic_lookup;
};

/// Which way KV goes between this engine and others.
struct KVTransferConfig {
  bool producer = false;  ///< others fetch KV from here: what is computed must be delivered
  bool consumer = false;  ///< KV is loaded instead of being computed
  /// What becomes of requests whose KV could not be loaded: computed here, or ended with an error.
  bool recompute_failed_loads = false;
  std::int32_t block_size = 0;  ///< local hits are asked beyond at its multiples: KVCacheSettings'
};

struct SchedulerConfig {
  std::int32_t max_model_len = 0;  ///< prompt and output together
  std::int32_t num_blocks = 0;     ///< of the KV cache, for the statistics
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_active_seqs = 0;  ///< limit of admission; 0: max_num_seqs
  std::int32_t max_num_batched_tokens = 2048;
  std::int32_t max_num_scheduled_tokens = 0;  ///< 0: max_num_batched_tokens
  bool enable_chunked_prefill = true;
  std::int32_t long_prefill_token_threshold = 0;  ///< a prefill step is no longer; 0: no limit
  bool long_prefill_adaptive = false;  ///< the threshold is at least a fair share of the budget
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  /// A waiting request for which there are not enough blocks is passed by at most so many others;
  /// then nobody is admitted before it. 0: nobody ever is.
  std::int32_t max_queue_bypasses = 0;
  /// kPriority: a waiting request takes place and blocks of running ones that are less urgent.
  bool priority_preemption = false;
  PreemptionVictim preemption_victim = PreemptionVictim::kLast;
  bool reserve_full_sequence = true;  ///< admit only what fits with its whole prompt now
  bool prefix_caching = true;
  bool async_scheduling = false;  ///< the next step is planned before the last one's result
  std::int32_t pipeline_parallel_size = 1;
  /// Decodes wait pipeline_parallel_size steps for their previous token (async only).
  bool stagger_decodes = true;
  std::uint32_t incarnation = 0;  ///< of the engine: every step carries it
  bool pooling = false;           ///< nothing is sampled, a request ends with its embedding
  SpeculativeConfig speculative;
  KVTransferConfig kv_transfer;            ///< only with a KVConnector
  std::int32_t max_loras = 0;              ///< distinct adapters in a step; 0: no limit
  std::int32_t max_encoder_embeds = 0;     ///< encoder budget of a step
  bool include_finished_requests = false;  ///< outputs list ended requests per client
  bool has_block_ops = false;              ///< Mamba groups: ask GetBlockOps in each step
  /// Encoder inputs go into the cross-attention cache with a request's first step.
  bool encoder_decoder = false;
  StatePositions states;  ///< of Mamba layers: where prefills are cut
  std::uint32_t engine_index = 0;

  /// Steps that may be open at once: planned, their results not yet taken in.
  [[nodiscard]] std::int32_t max_concurrent_batches() const noexcept {
    if (!async_scheduling) return pipeline_parallel_size;
    if (stagger_decodes) return pipeline_parallel_size + 1;
    return pipeline_parallel_size > 1 ? pipeline_parallel_size : 2;
  }
};

}  // namespace troupe
