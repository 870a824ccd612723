#include "runtime/models/device_batch.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

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

std::optional<std::size_t> DeviceBatch::append_given(const std::int32_t* values,
                                                     std::size_t count) {
  if (values == nullptr) return std::nullopt;
  return append(std::span(values, count));
}

Result<void> DeviceBatch::reserve(DeviceMemory& memory, std::size_t num_bytes,
                                  std::string_view what) {
  if (num_bytes <= memory.size()) return {};
  RETURN_IF_ERROR(device_.synchronize());  // the one that goes may be in use
  ASSIGN_OR_RETURN(memory, device_.allocate(2 * num_bytes, what));
  return {};
}

Result<void> DeviceBatch::send_tables(const ForwardBatch& batch, const ForwardBatch::Group& group,
                                      Tables& tables) {
  CHECK(group.num_blocks != nullptr && batch.block_table_row_ids != nullptr);
  constexpr std::size_t kBlockBytes = sizeof(std::int32_t);
  std::size_t num_rows = tables.rows.size();
  for (const std::int32_t row : batch.block_table_rows)
    num_rows = std::max(num_rows, static_cast<std::size_t>(row) + 1);
  if (num_rows > tables.rows.size() || group.block_table_stride != tables.stride) {
    // Both grow by doubling, so everything is seldom sent again.
    const std::size_t num_bytes =
        num_rows * static_cast<std::size_t>(group.block_table_stride) * kBlockBytes;
    RETURN_IF_ERROR(reserve(tables.memory, num_bytes, "block tables"));
    tables.stride = group.block_table_stride;
    tables.rows.assign(
        std::max(num_rows, tables.memory.size() /
                               std::max<std::size_t>(
                                   1, static_cast<std::size_t>(tables.stride) * kBlockBytes)),
        {});
  }
  for (const std::int32_t number : batch.block_table_rows) {
    const auto index = static_cast<std::size_t>(number);
    Tables::Row& row = tables.rows[index];
    if (row.id != batch.block_table_row_ids[index]) row = {batch.block_table_row_ids[index], 0};
    const std::size_t num_new = group.num_blocks[index] - row.num_blocks;
    if (num_new == 0) continue;
    const std::size_t first = index * static_cast<std::size_t>(tables.stride) + row.num_blocks;
    device_.copy_to_device(tables.memory.data() + first * kBlockBytes, group.block_tables + first,
                           num_new * kBlockBytes);
    row.num_blocks += num_new;
    num_sent_blocks_ += static_cast<std::int64_t>(num_new);
  }
  return {};
}

const ForwardBatch* DeviceBatch::put(const ForwardBatch& batch) {
  if (device_.is_host()) return &batch;
  staging_.clear();
  const std::size_t token_ids = append(batch.token_ids);
  const std::size_t positions = append(batch.positions);
  const std::size_t token_types = append(batch.token_types);
  const std::size_t query_start_loc = append(batch.query_start_loc);
  const std::size_t seq_lens = append(batch.seq_lens);
  const std::size_t output_start_loc = append(batch.output_start_loc);
  const ForwardBatch::InputEmbeddings& given = batch.input_embeddings;
  const std::size_t embedded_tokens = append(given.tokens);
  const std::size_t embedding_rows = append(given.rows);
  const std::size_t spans = append(batch.two_way_spans);
  const std::size_t span_start_loc = append(batch.span_start_loc);
  const std::size_t adapter_ids = append(batch.adapter_ids);
  const std::size_t rows = append(batch.block_table_rows);
  const ForwardBatch::EncoderInputs& encoded = batch.encoder_inputs;
  const std::size_t encoder_rows = append(encoded.rows);
  const std::size_t encoder_starts = append(encoded.starts);
  const std::size_t encoder_lens = append(encoded.lens);
  const std::size_t encoder_table_rows = append(encoded.table_rows);
  struct Offsets {
    std::size_t slots;
    std::optional<std::size_t> states_before;
    std::optional<std::size_t> states_after;
  };
  std::vector<Offsets> groups;
  for (const ForwardBatch::Group& group : batch.groups) {
    const std::size_t slots = append(std::span(group.slots, group.num_slots));
    groups.push_back({slots, append_given(group.states_before, batch.seq_lens.size()),
                      append_given(group.states_after, batch.token_ids.size())});
  }

  tables_.resize(batch.groups.size());
  Result<void> sent = reserve(memory_, staging_.size(), "a step's arrays");
  for (std::size_t g = 0; g < tables_.size() && sent.ok(); ++g)
    sent = send_tables(batch, batch.groups[g], tables_[g]);
  if (!sent.ok()) {
    device_.fail(sent.error());
    return nullptr;
  }
  device_.copy_to_device(memory_.data(), staging_.data(), staging_.size());

  groups_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups_.push_back(
        {.slots = at<std::int64_t>(groups[g].slots),
         .block_tables = reinterpret_cast<const std::int32_t*>(tables_[g].memory.data()),
         .block_table_stride = batch.groups[g].block_table_stride,
         .states_before = at<BlockId>(groups[g].states_before),
         .states_after = at<BlockId>(groups[g].states_after)});
  batch_ = {.token_ids = {at<TokenId>(token_ids), batch.token_ids.size()},
            .positions = {at<std::int32_t>(positions), batch.positions.size()},
            .token_types = {at<std::int32_t>(token_types), batch.token_types.size()},
            .query_start_loc = {at<std::int32_t>(query_start_loc), batch.query_start_loc.size()},
            .seq_lens = {at<std::int32_t>(seq_lens), batch.seq_lens.size()},
            .output_start_loc = {at<std::int32_t>(output_start_loc), batch.output_start_loc.size()},
            .block_table_rows = {at<std::int32_t>(rows), batch.block_table_rows.size()},
            .groups = groups_,
            .input_embeddings = {.tokens = {at<std::int32_t>(embedded_tokens), given.tokens.size()},
                                 .rows = {at<std::int32_t>(embedding_rows), given.rows.size()},
                                 .outputs = given.outputs},
            .encoder_inputs = {.rows = {at<std::int32_t>(encoder_rows), encoded.rows.size()},
                               .outputs = encoded.outputs,
                               .starts = {at<std::int32_t>(encoder_starts), encoded.starts.size()},
                               .lens = {at<std::int32_t>(encoder_lens), encoded.lens.size()},
                               .table_rows = {at<std::int32_t>(encoder_table_rows),
                                              encoded.table_rows.size()}},
            .two_way_spans = {at<TwoWaySpan>(spans), batch.two_way_spans.size()},
            .span_start_loc = {at<std::int32_t>(span_start_loc), batch.span_start_loc.size()},
            .adapter_ids = {at<std::int32_t>(adapter_ids), batch.adapter_ids.size()}};
  return &batch_;
}

}  // namespace troupe
