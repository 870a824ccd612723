#include "runtime/worker/flat_batch.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/check.hpp"

namespace troupe {

FlatBatch::FlatBatch(const std::vector<std::int32_t>& block_sizes) {
  for (const std::int32_t block_size : block_sizes) {
    CHECK(block_size > 0, block_size);
    groups_.push_back({.block_size = block_size, .slots = {}, .block_tables = {}});
  }
  group_views_.resize(groups_.size());
}

void FlatBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  output_start_loc_.assign(1, 0);
  blocks_.clear();
  for (GroupArrays& group : groups_) group.slots.clear();
}

void FlatBatch::add(std::span<const TokenId> tokens, std::int32_t begin, const BlockTable& blocks,
                    std::int32_t num_outputs) {
  const auto end = begin + static_cast<std::int32_t>(tokens.size());
  CHECK(begin < end && end <= num_slots(blocks), begin, end, num_slots(blocks));
  CHECK(num_outputs >= 0 && num_outputs <= end - begin, num_outputs, begin, end);
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (std::int32_t position = begin; position < end; ++position) positions_.push_back(position);
  query_start_loc_.push_back(query_start_loc_.back() + end - begin);
  seq_lens_.push_back(end);
  output_start_loc_.push_back(output_start_loc_.back() + num_outputs);
  blocks_.push_back(&blocks);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t block_size = groups_[g].block_size;
    for (std::int32_t position = begin; position < end; ++position) {
      const std::int64_t block = blocks[g][static_cast<std::size_t>(position / block_size)];
      groups_[g].slots.push_back(block * block_size + position % block_size);
    }
  }
}

std::int64_t FlatBatch::num_slots(const BlockTable& blocks) const {
  std::int64_t num_slots = std::numeric_limits<std::int64_t>::max();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    num_slots = std::min(num_slots, std::ssize(blocks[g]) * groups_[g].block_size);
  return num_slots;
}

ForwardBatch FlatBatch::view() {
  const std::int32_t max_seq_len = seq_lens_.empty() ? 0 : *std::ranges::max_element(seq_lens_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    GroupArrays& group = groups_[g];
    const std::int64_t stride = (max_seq_len + group.block_size - 1) / group.block_size;
    group.block_tables.assign(blocks_.size() * static_cast<std::size_t>(stride), kNullBlock);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::int32_t num_blocks = (seq_lens_[i] + group.block_size - 1) / group.block_size;
      std::copy_n((*blocks_[i])[g].begin(), num_blocks,
                  group.block_tables.begin() + static_cast<std::ptrdiff_t>(i) * stride);
    }
    group_views_[g] = {.slots = group.slots.data(),
                       .block_tables = group.block_tables.data(),
                       .block_table_stride = stride};
  }
  return {.token_ids = token_ids_,
          .positions = positions_,
          .query_start_loc = query_start_loc_,
          .seq_lens = seq_lens_,
          .output_start_loc = output_start_loc_,
          .groups = group_views_};
}

}  // namespace troupe
