#pragma once
// What the KVCacheManager is told at start, and what follows from it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/state_positions.hpp"
#include "runtime/cache/block_hash.hpp"

namespace troupe {

/// Error: layers of this kind have no manager here.
[[nodiscard]] Result<void> check_kind(const KVCacheSpec& spec);

struct KVCacheSettings {
  std::vector<KVCacheGroup> groups;
  std::int32_t num_blocks = 0;  ///< the null block included
  std::int32_t max_model_len = 0;
  /// Tokens whose results may be outstanding at once: max_num_batched_tokens, times the steps that
  /// may be open. Bounds what a sliding-window request can hold.
  std::int32_t max_in_flight_tokens = 0;
  bool prefix_caching = true;
  /// Sliding-window and Mamba groups keep few blocks in the prefix cache. None: every block that a
  /// hit could need; 0: those at the ends of prompts and at junctions; n: also at every n tokens.
  std::optional<std::int32_t> retention_interval = 0;
  std::optional<std::int32_t> prefix_match_unit;  ///< tokens per hash, if several groups
  double watermark = 0;                           ///< share of blocks kept free at admission
  bool eagle_block_drop = false;  ///< the last hit block is computed again, for the drafter
  std::int32_t num_prefill_lookahead = 0;
  /// A Mamba state is also kept exactly where a request leaves a shared prefix, if sub-block hits
  /// are possible and there is a drafter with one layer.
  bool mamba_shared_prefix_checkpoint = false;
  bool kv_connector = false;  ///< blocks come and go by a KV connector, which wants their hashes
  bool events = false;
  double metrics_sample_rate = 0;  ///< share of the blocks that BlockMetrics observes
  BlockHashAlgorithm hash_algorithm = BlockHashAlgorithm::kSha256Cbor;
  std::string hash_seed = std::string(BlockHasher::kDefaultSeed);

  /// Error: a group's kind has no manager, or the retention interval or the match unit does not go
  /// with the groups.
  [[nodiscard]] Result<void> check() const;

  /// Least common multiple of the block sizes: hits of several groups end at its multiples.
  [[nodiscard]] std::int32_t scheduler_block_size() const;
  /// Tokens per hash.
  [[nodiscard]] std::int32_t hash_block_size() const;
  [[nodiscard]] bool keeps_hashes() const noexcept { return prefix_caching || kv_connector; }
  /// Hits may end inside a block.
  [[nodiscard]] bool partial_hash_hits() const;
  /// Hits end at multiples of it.
  [[nodiscard]] std::int32_t hit_alignment() const {
    return partial_hash_hits() ? hash_block_size() : scheduler_block_size();
  }
  /// The group counts as one of a drafter: flagged, or none is.
  [[nodiscard]] bool is_eagle_group(const KVCacheGroup& group) const;
  /// For the Scheduler too.
  [[nodiscard]] StatePositions state_positions() const;
};

}  // namespace troupe
