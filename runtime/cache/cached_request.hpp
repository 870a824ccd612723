#pragma once
// The KVCacheManager's state of a request.

#include <cstdint>
#include <optional>
#include <vector>

#include "messages/cache.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/cache/block_hash.hpp"

namespace troupe {

/// A request's blocks in one group. Block i covers tokens [i * block_size, (i + 1) * block_size);
/// unused entries are the null block.
struct GroupBlocks {
  std::vector<BlockId> blocks;
  /// Leading blocks that are already cached; nullopt until the request has adopted or cached some.
  std::optional<std::int32_t> num_cached_blocks;
  /// The shared block in which the adopted hit ends: it is replaced by a copy before the request
  /// writes to it.
  std::optional<std::int32_t> shared_tail;

  // ---- Mamba groups that keep states at block boundaries ----
  /// The last blocks of the table hold the running state and those of speculative tokens.
  bool has_running_state = false;
  /// The running state's block is also in the prefix cache, for a prefix that ends inside it: its
  /// content is moved to a copy before the state advances.
  std::optional<std::int32_t> cached_tail;
  /// This step writes the state at num_tokens, inside the step, to block `index`.
  struct Checkpoint {
    std::int32_t index = 0;
    std::int32_t num_tokens = 0;
  };
  std::optional<Checkpoint> checkpoint;
};

struct CachedRequest {
  KVCacheRequest info;
  std::vector<BlockHash> hashes;  ///< one per full hash unit of info.token_ids
  std::vector<GroupBlocks> groups;
  std::int32_t shared_prefix_boundary = 0;
  std::int32_t num_computed_tokens = 0;  ///< before the step being planned
  /// AdmitRequest::delay_caching: until kCacheBlocks, its blocks do not enter the prefix cache.
  bool delays_caching = false;
  std::vector<std::int32_t> pins_to_come;  ///< ends of prefixes to pin once they are cached

  [[nodiscard]] std::int32_t num_tokens() const noexcept {
    return static_cast<std::int32_t>(info.token_ids.size());
  }
};

/// Cached blocks from which a request could start.
struct CacheHit {
  BlockTable blocks;            ///< per group
  std::int32_t num_tokens = 0;  ///< covered by the blocks
  /// Where the request diverges from a prefix that others have computed but of which some group no
  /// longer has blocks; 0: nowhere.
  std::int32_t shared_prefix_boundary = 0;

  [[nodiscard]] bool has_blocks() const {
    for (const auto& group : blocks)
      if (!group.empty()) return true;
    return false;
  }
};

}  // namespace troupe
