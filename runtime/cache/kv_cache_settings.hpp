#pragma once
// Configuration of the KVCacheManager, and values derived from it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/state_positions.hpp"
#include "runtime/cache/block_hash.hpp"

namespace troupe {

/// Error: layers of this kind are not supported.
[[nodiscard]] Result<void> check_kind(const KVCacheSpec& spec);

struct KVCacheSettings {
  std::vector<KVCacheGroup> groups;
  std::int32_t num_blocks = 0;  ///< including the null block
  std::int32_t max_model_len = 0;
  /// Maximum number of tokens with outstanding results: max_num_batched_tokens, times the number of
  /// open steps. Bounds the blocks of a sliding-window request.
  std::int32_t max_in_flight_tokens = 0;
  bool prefix_caching = true;
  /// Sliding-window and Mamba groups cache few blocks. nullopt: every block that a hit could need;
  /// 0: those at the ends of prompts and at junctions; n: also at every n tokens.
  std::optional<std::int32_t> retention_interval = 0;
  std::optional<std::int32_t> prefix_match_unit;  ///< tokens per hash, if several groups
  double watermark = 0;                           ///< fraction of blocks kept free at admission
  std::int32_t max_pinned_blocks = 0;             ///< of the prefixes that requests pin
  bool eagle_block_drop = false;  ///< the last hit block is recomputed, for the drafter
  std::int32_t num_prefill_lookahead = 0;
  /// A Mamba state is also cached exactly where a request diverges from a shared prefix, if
  /// sub-block hits are possible and there is a drafter with one layer.
  bool mamba_shared_prefix_checkpoint = false;
  bool kv_connector = false;  ///< a KV connector transfers blocks, and needs their hashes
  bool events = false;
  double metrics_sample_rate = 0;  ///< fraction of the blocks that BlockMetrics samples
  BlockHashAlgorithm hash_algorithm = BlockHashAlgorithm::kSha256Cbor;
  std::string hash_seed = std::string(BlockHasher::kDefaultSeed);

  /// Error: a group's kind is not supported, or the retention interval or the match unit does not
  /// match the groups.
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
  /// Whether the group counts as a drafter's: it, or one of the same kind that is looked up with
  /// it, is flagged; or none is, and the last hit block is recomputed.
  [[nodiscard]] bool is_eagle_group(const KVCacheGroup& group) const;
  [[nodiscard]] bool has_eagle_groups() const;
  /// Also used by the Scheduler.
  [[nodiscard]] StatePositions state_positions() const;
};

}  // namespace troupe
