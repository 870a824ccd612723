#include "runtime/worker/drafted_blocks.hpp"

#include <algorithm>

namespace troupe {
namespace {

/// Of a row, a block with tokens among [begin, end), and these as positions in it.
struct BlockPart {
  BlockId block = kNullBlock;
  std::int32_t first = 0;  ///< token of the sequence
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

template <typename Visit>
void for_each_block(const BlockTables& tables, std::size_t group, std::int32_t row,
                    std::int32_t begin, std::int32_t end, const Visit& visit) {
  const std::int32_t size = tables.block_size(group);
  const BlockId each = tables.kernel_blocks_per_block(group);
  const std::span<const BlockId> blocks = tables.blocks(row, group);
  end = std::min(end, static_cast<std::int32_t>(blocks.size()) * size);
  for (std::int32_t at = begin; at < end; at = (at / size + 1) * size) {
    const std::int32_t first = at / size * size;
    const BlockId block = blocks[static_cast<std::size_t>(at / size)];
    if (block / each == kNullBlock) continue;
    visit(BlockPart{block, first, at - first, std::min(end - first, size)});
  }
}

}  // namespace

DraftedBlocks::DraftedBlocks(const BlockTables& tables, std::span<const LayerKvCache> layers)
    : tables_(tables) {
  for (const LayerKvCache& layer : layers)
    if (std::ranges::find(groups_, layer.group, &Group::index) == groups_.end())
      groups_.push_back({.index = layer.group, .num_present = {}});
}

void DraftedBlocks::add(std::int32_t row, std::int32_t begin, std::int32_t end) {
  for (Group& group : groups_) {
    if (group.num_present.empty()) continue;
    const std::int32_t size = tables_.block_size(group.index);
    for_each_block(tables_, group.index, row, begin, end, [&](const BlockPart& part) {
      const auto block = static_cast<std::size_t>(part.block);
      if (block >= group.num_present.size()) return;
      std::int32_t& present = group.num_present[block];
      if (part.begin <= present && present < part.end)
        present = part.end == size ? kNone : part.end;
    });
  }
}

void DraftedBlocks::skip(std::int32_t row, std::int32_t begin, std::int32_t end) {
  for (Group& group : groups_) {
    for_each_block(tables_, group.index, row, begin, end, [&](const BlockPart& part) {
      const auto block = static_cast<std::size_t>(part.block);
      if (block >= group.num_present.size()) group.num_present.resize(2 * block + 1, kNone);
      group.num_present[block] = std::min(group.num_present[block], part.begin);
    });
  }
}

std::int32_t DraftedBlocks::first_missing(std::int32_t row, std::int32_t num_tokens) const {
  std::int32_t missing = kNone;
  for (const Group& group : groups_) {
    if (group.num_present.empty()) continue;
    for_each_block(tables_, group.index, row, 0, num_tokens, [&](const BlockPart& part) {
      const auto block = static_cast<std::size_t>(part.block);
      if (block < group.num_present.size() && group.num_present[block] < part.end)
        missing = std::min(missing, part.first + group.num_present[block]);
    });
  }
  return missing;
}

void DraftedBlocks::copy(std::span<const std::pair<BlockId, BlockId>> blocks) {
  for (Group& group : groups_) {
    const BlockId each = tables_.kernel_blocks_per_block(group.index);
    for (const auto& [source, destination] : blocks) {
      const auto end = static_cast<std::size_t>((std::max(source, destination) + 1) * each);
      if (group.num_present.empty()) continue;
      if (end > group.num_present.size()) group.num_present.resize(end, kNone);
      std::copy_n(group.num_present.begin() + source * each, each,
                  group.num_present.begin() + destination * each);
    }
  }
}

}  // namespace troupe
