#include "runtime/models/weight_packing.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "runtime/models/quantize.hpp"

namespace troupe {

ElementType element_type(const StoredWeight& weight) {
  if (weight.quantized) return ElementType::kF32;
  switch (weight.tensor->view.type) {
    case TensorType::kBF16:
      return ElementType::kBF16;
    case TensorType::kF16:
      return ElementType::kF16;
    default:
      return ElementType::kF32;
  }
}

bool is_quantized(const StoredWeight& weight) {
  return weight.quantized || is_block_type(weight.tensor->view.type);
}

std::int64_t stored_row(const Checkpoint::Tensor& tensor, std::int64_t row) {
  const std::int64_t head_dim = tensor.interleaved_head_dim;
  if (head_dim == 0) return row;
  const std::int64_t half = row % head_dim / (head_dim / 2);
  return row / head_dim * head_dim + row % (head_dim / 2) * 2 + half;
}

namespace {

/// Calls pack(begin, end) for pieces of [0, num_rows) on all threads.
template <class F>
void for_each_piece(Device& device, std::int64_t num_rows, const F& pack) {
  constexpr std::int64_t kRowsPerChunk = 64;
  device.pool().parallel_for((num_rows + kRowsPerChunk - 1) / kRowsPerChunk,
                             [&](std::int64_t chunk) {
                               const std::int64_t begin = chunk * kRowsPerChunk;
                               pack(begin, std::min(begin + kRowsPerChunk, num_rows));
                             });
}

/// Row `row` of the model's matrix, widened.
void widen(const StoredWeight& weight, std::int64_t row, Slice cols, float* out) {
  if (weight.quantized) return weight.quantized->widen({row, 1}, cols, out);
  widen_row(weight.tensor->view, stored_row(*weight.tensor, row), cols.begin, cols.count, out);
}

}  // namespace

void pack_wide(Device& device, const WeightSpec& spec, const RowsToPack& part, std::byte* packed) {
  const ElementType type = element_type(part.weight);
  const bool is_wide = !is_quantized(part.weight);
  const bool is_dense = is_wide && part.cols.count == part.weight.tensor->view.shape.back() &&
                        part.weight.tensor->interleaved_head_dim == 0;
  for_each_piece(device, part.rows.count, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> widened(is_wide ? 0 : static_cast<std::size_t>(part.cols.count));
    const std::int64_t rows_at_once = is_dense ? end - begin : 1;
    for (std::int64_t i = begin; i < end; i += rows_at_once) {
      const std::int64_t row = part.rows.begin + i;
      const void* data = widened.data();
      if (is_wide) {
        const TensorView& view = part.weight.tensor->view;
        data = view.bytes.data() +
               (stored_row(*part.weight.tensor, row) * view.shape.back() + part.cols.begin) *
                   element_bytes(type);
      } else {
        widen(part.weight, row, part.cols, widened.data());
      }
      device.ops().pack_rows(spec, {data, type, rows_at_once, part.cols.count}, part.first_row + i,
                             packed);
    }
  });
}

namespace {

/// Some rows as quantised groups: the stored ones, cut to spec's group size, or made from wide
/// numbers.
class RowQuantizer {
 public:
  static constexpr std::int64_t kMaxRows = 16;  ///< in a cache line of words, where they lie so

  explicit RowQuantizer(const WeightSpec& spec)
      : spec_(spec),
        num_groups_(spec.k_shards * spec.groups_per_shard()),
        values_(static_cast<std::size_t>(kMaxRows * spec.num_cols)),
        scales_(static_cast<std::size_t>(kMaxRows * num_groups_)),
        minimums_(scales_.size()),
        widened_(static_cast<std::size_t>(spec.num_cols)) {}

  /// Pre: at most kMaxRows; with keeps_groups, the weight's stored groups consist of spec's.
  QuantizedRows run(const StoredWeight& weight, Slice rows, std::int64_t first_col,
                    bool keeps_groups) {
    const Slice cols{first_col, spec_.num_cols};
    if (keeps_groups && weight.quantized) weight.quantized->unpack(rows, cols, values_.data());
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const std::int64_t row = rows.begin + i;
      if (!keeps_groups) widen(weight, row, cols, widened_.data());
      for_each_group([&](std::int64_t group, std::int64_t begin, std::int64_t size) {
        std::int8_t* values = values_.data() + i * spec_.num_cols + begin;
        const auto at = static_cast<std::size_t>(i * num_groups_ + group);
        GroupScale scale;
        if (!keeps_groups)
          scale = quantize_group(spec_.quantized,
                                 std::span(widened_).subspan(static_cast<std::size_t>(begin),
                                                             static_cast<std::size_t>(size)),
                                 values);
        else if (weight.quantized)
          scale = weight.quantized->group_scale(row, first_col + begin);
        else
          scale = unpack_block(*weight.tensor, row, first_col + begin, size, values);
        scales_[at] = scale.scale;
        minimums_[at] = scale.minimum;
      });
    }
    return {values_.data(), scales_.data(), minimums_.data(), rows.count};
  }

 private:
  /// use(index, first column, number of columns) for the groups of a row.
  template <class F>
  void for_each_group(const F& use) const {
    const std::int64_t depth = spec_.num_cols / spec_.k_shards;
    std::int64_t group = 0;
    for (std::int64_t shard = 0; shard < spec_.num_cols; shard += depth)
      for (std::int64_t k = 0; k < depth; k += spec_.group_size, ++group)
        use(group, shard + k, std::min<std::int64_t>(spec_.group_size, depth - k));
  }

  /// Columns that lie in one group of the tensor's blocks.
  static GroupScale unpack_block(const Checkpoint::Tensor& tensor, std::int64_t row,
                                 std::int64_t col, std::int64_t num_cols, std::int8_t* values) {
    const TensorView& view = tensor.view;
    const TypeBlock block = type_block(view.type);
    const std::byte* data = view.bytes.data() + stored_row(tensor, row) *
                                                    (view.shape.back() / block.num_elements) *
                                                    block.num_bytes;
    const std::int64_t size = block_groups(view.type).group_size;
    std::array<std::int8_t, 32> whole{};
    const GroupScale scale = unpack_group(view.type, data, col / size, whole.data());
    std::copy_n(whole.data() + col % size, num_cols, values);
    return scale;
  }

  WeightSpec spec_;
  std::int64_t num_groups_;
  std::vector<std::int8_t> values_;
  std::vector<float> scales_;
  std::vector<float> minimums_;
  std::vector<float> widened_;
};

}  // namespace

void pack_quantized(Device& device, const WeightSpec& spec, const RowsToPack& part,
                    std::byte* packed) {
  for_each_piece(device, part.rows.count, [&](std::int64_t begin, std::int64_t end) {
    RowQuantizer quantizer(spec);
    for (std::int64_t i = begin; i < end; i += RowQuantizer::kMaxRows) {
      const Slice rows{part.rows.begin + i, std::min(RowQuantizer::kMaxRows, end - i)};
      device.ops().pack_quantized_rows(
          spec, quantizer.run(part.weight, rows, part.cols.begin, part.keeps_groups),
          part.first_row + i, packed);
    }
  });
}

}  // namespace troupe
