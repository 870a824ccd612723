#include "runtime/models/device_batch.hpp"

#include <algorithm>
#include <numeric>

namespace troupe {

std::size_t DeviceBatch::grow(std::size_t num_bytes) {
  constexpr std::size_t kAlignment = alignof(std::int64_t);
  const std::size_t begin = (staging_.size() + kAlignment - 1) / kAlignment * kAlignment;
  staging_.resize(begin + num_bytes);
  return begin;
}

template <class T>
std::size_t DeviceBatch::append(std::span<const T> values) {
  const std::size_t begin = grow(values.size_bytes());
  std::ranges::copy(std::as_bytes(values), staging_.begin() + static_cast<std::ptrdiff_t>(begin));
  return begin;
}

std::size_t DeviceBatch::append_rows(const ForwardBatch& batch, const ForwardBatch::Group& group) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(group.block_table_stride) * sizeof(std::int32_t);
  const std::size_t begin = grow(batch.block_table_rows.size() * row_bytes);
  std::byte* to = staging_.data() + begin;
  for (const std::int32_t row : batch.block_table_rows) {
    std::memcpy(to, group.block_tables + row * group.block_table_stride, row_bytes);
    to += row_bytes;
  }
  return begin;
}

std::optional<std::size_t> DeviceBatch::append_each(const ForwardBatch& batch,
                                                    const std::int32_t* values) {
  if (values == nullptr) return std::nullopt;
  return append(std::span(values, batch.seq_lens.size()));
}

const ForwardBatch* DeviceBatch::put(const ForwardBatch& batch) {
  if (device_.is_host()) return &batch;
  staging_.clear();
  rows_.resize(batch.block_table_rows.size());
  std::iota(rows_.begin(), rows_.end(), 0);
  const std::size_t token_ids = append(batch.token_ids);
  const std::size_t positions = append(batch.positions);
  const std::size_t query_start_loc = append(batch.query_start_loc);
  const std::size_t seq_lens = append(batch.seq_lens);
  const std::size_t output_start_loc = append(batch.output_start_loc);
  const ForwardBatch::InputEmbeddings& given = batch.input_embeddings;
  const std::size_t embedded_tokens = append(given.tokens);
  const std::size_t embeddings = append(std::span<const float>(
      given.rows.data, given.tokens.size() * static_cast<std::size_t>(given.rows.num_cols)));
  const std::size_t spans = append(batch.two_way_spans);
  const std::size_t span_start_loc = append(batch.span_start_loc);
  const std::size_t adapter_ids = append(batch.adapter_ids);
  const std::size_t rows = append(std::span<const std::int32_t>(rows_));
  struct Offsets {
    std::size_t slots;
    std::size_t block_tables;
    std::optional<std::size_t> states_before;
    std::optional<std::size_t> states_after;
  };
  std::vector<Offsets> groups;
  for (const ForwardBatch::Group& group : batch.groups) {
    const std::size_t slots = append(std::span(group.slots, batch.token_ids.size()));
    const std::size_t tables = append_rows(batch, group);
    groups.push_back({slots, tables, append_each(batch, group.states_before),
                      append_each(batch, group.states_after)});
  }

  if (staging_.size() > memory_.size()) {
    if (!device_.synchronize().ok()) return nullptr;
    Result<DeviceMemory> memory = device_.allocate(2 * staging_.size(), "a step's arrays");
    if (!memory.ok()) {
      device_.fail(memory.error());
      return nullptr;
    }
    memory_ = std::move(memory).value();
  }
  device_.copy_to_device(memory_.data(), staging_.data(), staging_.size());

  groups_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups_.push_back({.slots = at<std::int64_t>(groups[g].slots),
                       .block_tables = at<std::int32_t>(groups[g].block_tables),
                       .block_table_stride = batch.groups[g].block_table_stride,
                       .states_before = at<BlockId>(groups[g].states_before),
                       .states_after = at<BlockId>(groups[g].states_after)});
  batch_ = {.token_ids = {at<TokenId>(token_ids), batch.token_ids.size()},
            .positions = {at<std::int32_t>(positions), batch.positions.size()},
            .query_start_loc = {at<std::int32_t>(query_start_loc), batch.query_start_loc.size()},
            .seq_lens = {at<std::int32_t>(seq_lens), batch.seq_lens.size()},
            .output_start_loc = {at<std::int32_t>(output_start_loc), batch.output_start_loc.size()},
            .block_table_rows = {at<std::int32_t>(rows), rows_.size()},
            .groups = groups_,
            .input_embeddings = {.tokens = {at<std::int32_t>(embedded_tokens), given.tokens.size()},
                                 .rows = {at<float>(embeddings), given.rows.num_rows,
                                          given.rows.num_cols}},
            .two_way_spans = {at<TwoWaySpan>(spans), batch.two_way_spans.size()},
            .span_start_loc = {at<std::int32_t>(span_start_loc), batch.span_start_loc.size()},
            .adapter_ids = {at<std::int32_t>(adapter_ids), batch.adapter_ids.size()}};
  return &batch_;
}

}  // namespace troupe
