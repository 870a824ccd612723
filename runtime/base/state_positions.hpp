#pragma once
// Where in a request a Mamba layer's state is worth caching. Shared by the Scheduler, which splits
// prefills there, and the KVCacheManager, which hashes the blocks that hold those states.

#include <algorithm>
#include <cstdint>

namespace troupe {

/// The rules of one engine; all sizes in tokens. A state can only be cached where a step ends, or,
/// with a checkpoint block, at one position inside a step.
struct StatePositions {
  std::int32_t block_size = 0;  ///< the smallest of all groups; 0: no states are cached
  std::int32_t hash_unit = 0;   ///< tokens per block hash
  std::int32_t alignment = 0;   ///< prefix hits end at multiples of it
  bool partial_hits = false;    ///< hits may end inside a block
  bool eagle_block_drop = false;
  /// Every Mamba group has a checkpoint block, for steps whose remainder is a multiple of this; 0:
  /// none.
  std::int32_t checkpoint_alignment = 0;
  /// A state is cached exactly where a request diverges from a shared prefix.
  bool keep_junction = false;

  /// The last multiple of `unit` at which a hit on num_tokens tokens can end: the last token, or
  /// with a drafter the last unit, is always computed.
  [[nodiscard]] std::int32_t last_hit(std::int32_t num_tokens, std::int32_t unit) const noexcept {
    return std::max(
        eagle_block_drop ? num_tokens / unit * unit - unit : (num_tokens - 1) / unit * unit, 0);
  }

  /// Whether a step over tokens [begin, end) of a group with blocks of group_block_size can cache
  /// the state at `position` in a checkpoint block.
  [[nodiscard]] bool can_checkpoint(std::int32_t begin, std::int32_t end, std::int32_t position,
                                    std::int32_t group_block_size,
                                    std::int32_t group_alignment) const noexcept {
    const std::int32_t begin_block = begin == 0 ? -1 : (begin - 1) / group_block_size;
    const std::int32_t end_block = (end + group_block_size - 1) / group_block_size;
    return group_alignment > 0 && begin % hash_unit == 0 && end_block - 2 > begin_block &&
           begin + hash_unit <= position && begin < position && position < end &&
           (position - begin) % group_alignment == 0;
  }
};

}  // namespace troupe
