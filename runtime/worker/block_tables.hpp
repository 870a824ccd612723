#pragma once
// The block tables of a worker's requests, as the attention kernels read them.

#include <cstdint>
#include <span>
#include <vector>

#include "messages/scheduler_output.hpp"

namespace troupe {

/// What the blocks of a KV-cache group hold.
enum class BlockContent : std::uint8_t {
  kTokens,   ///< keys and values of tokens
  kStates,   ///< states behind tokens
  kEncoder,  ///< keys and values of an encoder's rows
};

/// Of a KV-cache group, in tokens.
struct GroupBlockSizes {
  std::int32_t block = 0;   ///< the KVCacheManager's
  std::int32_t kernel = 0;  ///< the kernels': divides `block`
  BlockContent content = BlockContent::kTokens;

  GroupBlockSizes(std::int32_t size) : block(size), kernel(size) {}
  GroupBlockSizes(std::int32_t block_size, std::int32_t kernel_size,
                  BlockContent block_content = BlockContent::kTokens)
      : block(block_size), kernel(kernel_size), content(block_content) {}
};

/// Owns, per KV-cache group, an array of rows: one row per request, with the blocks of its tokens
/// in order. A row stays where it is from add() to remove(), and new blocks are appended to it, so
/// that a step writes what is new in it and nothing else, however long the contexts are. A batch
/// names the rows of its sequences (AttentionArgs::block_table_rows); nothing is moved when
/// requests come, go, or sit out a step.
///
/// Rows widen, and their number grows, by doubling. What a row does not use is the null block.
///
/// The blocks of the KVCacheManager may be larger than those of the kernels: block b of k kernel
/// blocks is the kernels' blocks b * k to b * k + k - 1, one behind the other in its page. add()
/// and append() take the manager's, everything else is about the kernels'.
class BlockTables {
 public:
  explicit BlockTables(const std::vector<GroupBlockSizes>& groups);

  /// A row with these blocks: one list per group.
  [[nodiscard]] std::int32_t add(const BlockTable& blocks);
  void append(std::int32_t row, std::size_t group, std::span<const BlockId> blocks);
  void remove(std::int32_t row);

  [[nodiscard]] std::size_t num_groups() const noexcept { return groups_.size(); }
  [[nodiscard]] std::int32_t block_size(std::size_t group) const noexcept {
    return groups_[group].block_size;
  }
  [[nodiscard]] BlockContent content(std::size_t group) const noexcept {
    return groups_[group].content;
  }
  [[nodiscard]] std::int32_t kernel_blocks_per_block(std::size_t group) const noexcept {
    return groups_[group].kernel_blocks_per_block;
  }
  /// [rows, stride(group)], until the next change.
  [[nodiscard]] const BlockId* data(std::size_t group) const noexcept {
    return groups_[group].blocks.data();
  }
  [[nodiscard]] std::int64_t stride(std::size_t group) const noexcept {
    return static_cast<std::int64_t>(groups_[group].stride);
  }
  /// [rows]: blocks of each row.
  [[nodiscard]] const std::size_t* num_blocks(std::size_t group) const noexcept {
    return groups_[group].num_blocks.data();
  }
  /// [rows]: another number for each add() in this process. What a row of the same number had is
  /// still there.
  [[nodiscard]] const std::uint64_t* row_ids() const noexcept { return row_ids_.data(); }
  /// Of one row.
  [[nodiscard]] std::span<const BlockId> blocks(std::int32_t row, std::size_t group) const noexcept;
  /// How many tokens of a row's sequence there are slots for, in every group that has some.
  [[nodiscard]] std::int64_t num_slots(std::int32_t row) const noexcept;

 private:
  struct Group {
    std::int32_t block_size = 0;
    std::int32_t kernel_blocks_per_block = 1;
    BlockContent content = BlockContent::kTokens;
    std::size_t stride = 0;
    std::vector<BlockId> blocks;          // [num_rows_, stride]
    std::vector<std::size_t> num_blocks;  // of each row
  };
  static void widen(Group& group, std::size_t num_blocks);

  std::vector<Group> groups_;
  std::size_t num_rows_ = 0;
  std::vector<std::uint64_t> row_ids_;
  std::vector<std::int32_t> free_rows_;
};

}  // namespace troupe
