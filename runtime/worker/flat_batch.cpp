#include "runtime/worker/flat_batch.hpp"

#include "runtime/base/check.hpp"

namespace troupe {

FlatBatch::FlatBatch(const BlockTables& tables)
    : tables_(&tables), slots_(tables.num_groups()), groups_(tables.num_groups()) {}

void FlatBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  output_start_loc_.assign(1, 0);
  table_rows_.clear();
  for (std::vector<std::int64_t>& slots : slots_) slots.clear();
}

void FlatBatch::add(std::span<const TokenId> tokens, std::int32_t begin, std::int32_t table_row,
                    std::int32_t num_outputs) {
  const auto end = begin + static_cast<std::int32_t>(tokens.size());
  const std::int64_t num_slots = tables_->num_slots(table_row);
  CHECK(begin < end && end <= num_slots, begin, end, num_slots);
  CHECK(num_outputs >= 0 && num_outputs <= end - begin, num_outputs, begin, end);
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (std::int32_t position = begin; position < end; ++position) positions_.push_back(position);
  query_start_loc_.push_back(query_start_loc_.back() + end - begin);
  seq_lens_.push_back(end);
  output_start_loc_.push_back(output_start_loc_.back() + num_outputs);
  table_rows_.push_back(table_row);
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const std::span<const BlockId> blocks = tables_->blocks(table_row, g);
    const std::int32_t block_size = tables_->block_size(g);
    for (std::int32_t position = begin; position < end; ++position) {
      const std::int64_t block = blocks[static_cast<std::size_t>(position / block_size)];
      slots_[g].push_back(block * block_size + position % block_size);
    }
  }
}

ForwardBatch FlatBatch::view() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = {.slots = slots_[g].data(),
                  .block_tables = tables_->data(g),
                  .block_table_stride = tables_->stride(g)};
  }
  return {.token_ids = token_ids_,
          .positions = positions_,
          .query_start_loc = query_start_loc_,
          .seq_lens = seq_lens_,
          .output_start_loc = output_start_loc_,
          .block_table_rows = table_rows_,
          .groups = groups_};
}

}  // namespace troupe
