#pragma once
// Quantised activations in the input format of quantised products.

#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/matmul_quantized.hpp"
#include "kernels/cpu/rows.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/matmul_quantized_tiles.hpp"
#endif

namespace troupe::TROUPE_ISA {

/// How many rows of activations have interleaved groups: those of a tile for tile units, else one.
inline std::int64_t quantized_rows_at_once(const WeightSpec& spec, std::int64_t num_rows) {
#if defined(TROUPE_BF16_TILES)
  // For fewer rows, unpacking the weights costs more than the unit saves; unpacking nibbles costs
  // more.
  const std::int64_t min_rows = spec.quantized == QuantizedType::kInt8 ? 13 : 16;
  if (num_rows >= min_rows && spec.group_size <= kQuantizedStretch) return kTileRows;
#endif
  static_cast<void>(spec);
  static_cast<void>(num_rows);
  return 1;
}

/// The layout of the quantised activations of all rows in the workspace: first their numbers,
/// [num_rows, num_shards, padded_depth], then their groups, [num_shards, groups of a shard] of
/// rows_at_once interleaved rows.
struct QuantizedSpace {
  std::int64_t rows_at_once;
  std::int64_t value_stride;
  std::int64_t row_groups;
  std::int64_t value_bytes;
  std::int64_t num_bytes;
};
inline QuantizedSpace quantized_space(const WeightSpec& spec, std::int64_t num_rows,
                                      std::int64_t num_shards) {
  QuantizedSpace space;
  space.rows_at_once = quantized_rows_at_once(spec, num_rows);
  space.value_stride = num_shards * panel_layout(spec).padded_depth;
  space.row_groups = num_shards * spec.groups_per_shard();
  space.value_bytes = round_up(num_rows * space.value_stride, 64);
  const std::int64_t num_groups = round_up(num_rows, space.rows_at_once) * space.row_groups;
  space.num_bytes = space.value_bytes +
                    round_up(num_groups * static_cast<std::int64_t>(sizeof(QuantizedGroup)), 64);
  return space;
}

/// All rows of x, quantised, in the workspace.
class QuantizedX {
 public:
  /// For a product with num_shards shards of such a weight.
  QuantizedX(const OpContext& context, const WeightSpec& spec, std::int64_t num_shards,
             ConstMatrix x)
      : space_(quantized_space(spec, x.num_rows, num_shards)),
        shard_groups_(spec.groups_per_shard()),
        group_size_(spec.group_size),
        values_(reinterpret_cast<std::int8_t*>(context.workspace.data())),
        groups_(reinterpret_cast<QuantizedGroup*>(context.workspace.data() + space_.value_bytes)) {
    const PanelLayout layout = panel_layout(spec);
    depth_ = layout.padded_depth;
    for_each_row(context, x.num_rows, x.num_cols, [&](std::int64_t row) {
      QuantizedGroup* groups = groups_ + first_group(row);
      std::int8_t* values = values_ + row * space_.value_stride;
      for (std::int64_t s = 0; s < num_shards; ++s) {
        for (std::int64_t g = 0; g < shard_groups_; ++g) {
          const std::int64_t begin = g * group_size_;
          *groups = quantize_group(x.row(row) + s * layout.depth + begin,
                                   min_of(group_size_, layout.depth - begin), group_size_,
                                   values + s * depth_ + begin);
          groups += space_.rows_at_once;
        }
      }
    });
    // Products of rows past the last one are ignored, but subnormals would be slow.
    for (std::int64_t row = x.num_rows; row % space_.rows_at_once != 0; ++row) {
      for (std::int64_t g = 0; g < space_.row_groups; ++g)
        groups_[first_group(row) + g * space_.rows_at_once] = {};
    }
  }

  [[nodiscard]] TROUPE_INLINE bool is_for_tiles() const { return space_.rows_at_once > 1; }
  /// From that row and that group of a shard on.
  [[nodiscard]] TROUPE_INLINE QuantizedActivations at(std::int64_t row, std::int64_t shard,
                                                      std::int64_t group) const {
    return {values_ + row * space_.value_stride + shard * depth_ + group * group_size_,
            groups_ + first_group(row) + (shard * shard_groups_ + group) * space_.rows_at_once,
            space_.value_stride, is_for_tiles() ? 1 : space_.row_groups, space_.rows_at_once};
  }

 private:
  [[nodiscard]] TROUPE_INLINE std::int64_t first_group(std::int64_t row) const {
    const std::int64_t in_tile = row % space_.rows_at_once;
    return (row - in_tile) * space_.row_groups + in_tile;
  }

  QuantizedSpace space_;
  std::int64_t depth_ = 0;
  std::int64_t shard_groups_;
  std::int64_t group_size_;
  std::int8_t* values_;
  QuantizedGroup* groups_;
};

}  // namespace troupe::TROUPE_ISA
