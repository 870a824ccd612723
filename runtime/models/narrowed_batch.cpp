#include "runtime/models/narrowed_batch.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/base/check.hpp"

namespace troupe {

/// `tokens`: those of the sequence.
void NarrowedBatch::add_sequence(const ForwardBatch& batch, std::size_t sequence,
                                 std::span<const std::int32_t> tokens) {
  const std::int32_t num_outputs =
      batch.output_start_loc[sequence + 1] - batch.output_start_loc[sequence];
  CHECK(!tokens.empty() && tokens.back() + 1 == batch.query_start_loc[sequence + 1], sequence);
  while (!tokens.empty()) {
    std::size_t size = 1;
    while (size < tokens.size() && tokens[size] == tokens[size - 1] + 1) ++size;
    const auto run = tokens.first(size);
    tokens = tokens.subspan(size);
    for (const std::int32_t token : run) {
      const auto index = static_cast<std::size_t>(token);
      token_ids_.push_back(batch.token_ids[index]);
      positions_.push_back(batch.positions[index]);
      for (std::size_t g = 0; g < arrays_.size(); ++g)
        arrays_[g].slots.push_back(batch.groups[g].slots[index]);
    }
    const bool is_last = tokens.empty();
    CHECK(!is_last || num_outputs <= std::ssize(run), sequence, num_outputs, run.size());
    query_start_loc_.push_back(static_cast<std::int32_t>(token_ids_.size()));
    seq_lens_.push_back(positions_.back() + 1);
    output_start_loc_.push_back(output_start_loc_.back() + (is_last ? num_outputs : 0));
    table_rows_.push_back(batch.block_table_rows[sequence]);
    if (!batch.adapter_ids.empty()) adapter_ids_.push_back(batch.adapter_ids[sequence]);
    if (!batch.adapters.empty()) adapters_.push_back(batch.adapters[sequence]);
  }
}

const ForwardBatch& NarrowedBatch::narrow(const ForwardBatch& batch,
                                          std::span<const std::int32_t> tokens,
                                          std::span<const std::int32_t> current) {
  CHECK(batch.two_way_spans.empty() && batch.encoder_inputs.rows.empty() &&
            batch.encoder_inputs.lens.empty(),
        batch.two_way_spans.size());
  for (const ForwardBatch::Group& group : batch.groups)
    CHECK(group.states_before == nullptr && group.num_slots == batch.token_ids.size(),
          group.num_slots);
  rows_.clear();
  for (const std::int32_t token : tokens) {
    const auto found = std::ranges::lower_bound(current, token);
    CHECK(current.empty() || (found != current.end() && *found == token), token);
    rows_.push_back(current.empty() ? token : static_cast<std::int32_t>(found - current.begin()));
  }
  numbers_.resize(tokens.size());
  std::iota(numbers_.begin(), numbers_.end(), 0);

  for (auto* const array : {&positions_, &seq_lens_, &table_rows_, &adapter_ids_}) array->clear();
  token_ids_.clear();
  adapters_.clear();
  query_start_loc_ = {0};
  output_start_loc_ = {0};
  arrays_.assign(batch.groups.size(), {});
  for (std::size_t sequence = 0; sequence < batch.seq_lens.size(); ++sequence) {
    const auto end = std::ranges::lower_bound(tokens, batch.query_start_loc[sequence + 1]);
    const auto count = static_cast<std::size_t>(end - tokens.begin());
    add_sequence(batch, sequence, tokens.first(count));
    tokens = tokens.subspan(count);
  }
  CHECK(tokens.empty(), tokens.size());

  groups_.assign(batch.groups.begin(), batch.groups.end());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].slots = arrays_[g].slots.data();
    groups_[g].num_slots = arrays_[g].slots.size();
  }
  batch_ = {.token_ids = token_ids_,
            .positions = positions_,
            .query_start_loc = query_start_loc_,
            .seq_lens = seq_lens_,
            .output_start_loc = output_start_loc_,
            .block_table_rows = table_rows_,
            .block_table_row_ids = batch.block_table_row_ids,
            .groups = groups_,
            .input_embeddings = {.tokens = numbers_, .rows = rows_},
            .adapter_ids = adapter_ids_,
            .adapters = adapters_,
            .layer_hooks = batch.layer_hooks,
            .kv_blend = batch.kv_blend};
  return batch_;
}

}  // namespace troupe
