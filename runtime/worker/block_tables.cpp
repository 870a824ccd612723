#include "runtime/worker/block_tables.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

std::uint64_t next_row_id() noexcept {
  static std::atomic<std::uint64_t> num_rows = 0;
  return num_rows.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

BlockTables::BlockTables(const std::vector<GroupBlockSizes>& groups) {
  for (const auto& [block, kernel, content] : groups) {
    CHECK(kernel > 0 && block > 0 && block % kernel == 0, block, kernel);
    groups_.push_back({.block_size = kernel,
                       .kernel_blocks_per_block = block / kernel,
                       .content = content,
                       .stride = 0,
                       .blocks = {},
                       .num_blocks = {}});
  }
}

std::int32_t BlockTables::add(const BlockTable& blocks) {
  CHECK(blocks.size() == groups_.size(), blocks.size(), groups_.size());
  if (free_rows_.empty()) {
    const std::size_t first = num_rows_;
    num_rows_ = std::max<std::size_t>(1, 2 * num_rows_);
    for (std::size_t row = num_rows_; row-- > first;)
      free_rows_.push_back(static_cast<std::int32_t>(row));
    row_ids_.resize(num_rows_);
    for (Group& group : groups_) {
      group.num_blocks.resize(num_rows_);
      group.blocks.resize(num_rows_ * group.stride, kNullBlock);
    }
  }
  const std::int32_t row = free_rows_.back();
  free_rows_.pop_back();
  row_ids_[static_cast<std::size_t>(row)] = next_row_id();
  for (std::size_t g = 0; g < groups_.size(); ++g) append(row, g, blocks[g]);
  return row;
}

void BlockTables::append(std::int32_t row, std::size_t group, std::span<const BlockId> blocks) {
  Group& table = groups_[group];
  std::size_t& num_blocks = table.num_blocks[static_cast<std::size_t>(row)];
  const BlockId each = table.kernel_blocks_per_block;
  const std::size_t num_new = blocks.size() * static_cast<std::size_t>(each);
  widen(table, num_blocks + num_new);
  const std::size_t end = static_cast<std::size_t>(row) * table.stride + num_blocks;
  auto next = table.blocks.begin() + static_cast<std::ptrdiff_t>(end);
  for (const BlockId block : blocks)
    for (BlockId i = 0; i < each; ++i) *next++ = block * each + i;
  num_blocks += num_new;
}

void BlockTables::remove(std::int32_t row) {
  for (Group& group : groups_) {
    std::size_t& num_blocks = group.num_blocks[static_cast<std::size_t>(row)];
    const std::size_t begin = static_cast<std::size_t>(row) * group.stride;
    std::fill_n(group.blocks.begin() + static_cast<std::ptrdiff_t>(begin), num_blocks, kNullBlock);
    num_blocks = 0;
  }
  free_rows_.push_back(row);
}

void BlockTables::widen(Group& group, std::size_t num_blocks) {
  if (num_blocks <= group.stride) return;
  const std::size_t stride = std::max(num_blocks, 2 * group.stride);
  std::vector<BlockId> blocks(group.num_blocks.size() * stride, kNullBlock);
  for (std::size_t row = 0; row < group.num_blocks.size(); ++row)
    std::copy_n(group.blocks.begin() + static_cast<std::ptrdiff_t>(row * group.stride),
                group.num_blocks[row], blocks.begin() + static_cast<std::ptrdiff_t>(row * stride));
  group.blocks = std::move(blocks);
  group.stride = stride;
}

std::span<const BlockId> BlockTables::blocks(std::int32_t row, std::size_t group) const noexcept {
  const Group& table = groups_[group];
  const auto index = static_cast<std::size_t>(row);
  return std::span(table.blocks).subspan(index * table.stride, table.num_blocks[index]);
}

std::int64_t BlockTables::num_slots(std::int32_t row) const noexcept {
  std::int64_t num_slots = std::numeric_limits<std::int64_t>::max();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].content != BlockContent::kEncoder)
      num_slots = std::min(num_slots, std::ssize(blocks(row, g)) * groups_[g].block_size);
  return num_slots;
}

}  // namespace troupe
