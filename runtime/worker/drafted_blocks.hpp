#pragma once
// Which tokens of the KV cache's blocks a draft model has skipped.

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/models/model.hpp"
#include "runtime/worker/block_tables.hpp"

namespace troupe {

/// While guesses are not worth their cost, a draft model skips the tokens of the steps. Their
/// blocks stay in the prefix cache all the same, as the other model's part of them is complete: a
/// request that begins with them later must know what is missing.
///
/// Of each block of the draft model's groups, it keeps how many of the first tokens are there. What
/// is not known to be missing is there: a block that was loaded from elsewhere, or has been given
/// to another request, which computes its tokens or skips them.
class DraftedBlocks {
 public:
  /// No token is missing before that one.
  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

  /// For the groups of these layers. `tables` outlive it.
  DraftedBlocks(const BlockTables& tables, std::span<const LayerKvCache> layers);

  /// The draft model computes tokens [begin, end) of the sequence in that row. Pre: those before
  /// are there, or stay missing.
  void add(std::int32_t row, std::int32_t begin, std::int32_t end);
  /// It skips them.
  void skip(std::int32_t row, std::int32_t begin, std::int32_t end);
  /// The first of the row's first num_tokens tokens that is missing in one of the groups.
  [[nodiscard]] std::int32_t first_missing(std::int32_t row, std::int32_t num_tokens) const;
  /// Blocks of the KVCacheManager have been copied: source, destination.
  void copy(std::span<const std::pair<BlockId, BlockId>> blocks);

 private:
  struct Group {
    std::size_t index = 0;                  // in tables_
    std::vector<std::int32_t> num_present;  // by block, as far as one has been incomplete
  };

  const BlockTables& tables_;
  std::vector<Group> groups_;
};

}  // namespace troupe
