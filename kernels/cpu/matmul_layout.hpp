#pragma once
// The memory layout of a packed weight matrix.
//
// Output rows are divided into panels (they are the columns of the product); a panel holds its
// shards of K one after the other, and a shard is a sequence over k of the panel's columns. For
// bf16, two neighbouring k are interleaved, ((k, n), (k + 1, n)) in one 32-bit word: the input
// format of bf16 units, which also widens to f32 with one shift or mask. Any number of activation
// rows thus reads a panel once, sequentially. For a tile unit the words are stored tile by tile, 16
// pairs of k by 16 columns each, so that a tile is contiguous.
//
// A quantised shard is a sequence of groups, each with its numbers, then the panel's scales, then
// its minimums (f16). Four neighbouring k are in one 32-bit word (the input format of VNNI and
// AMX); of 4-bit numbers, the lower nibbles of four rows of words are k 0 to 15 of 32, the upper
// nibbles 16 to 31. Of numbers of kFp4, two neighbouring k are in one byte, the first in its lower
// nibble; their scales are exponents, of a byte.
//
// In a gated matrix the first half of a panel's columns are gates, the second half the matching
// `up` columns, so that one panel has both sums.

#include "kernels/cpu/simd.hpp"
#include "kernels/ops.hpp"

namespace troupe::TROUPE_ISA {

#if defined(__AVX512F__)
inline constexpr std::int64_t kPanelCols = 64;
#else
inline constexpr std::int64_t kPanelCols = 16;
#endif
inline constexpr std::int64_t kMaxShards = 4;

// bf16 shards are padded with zeros to whole steps of the unit: a pair, or the depth of a tile. A
// panel for tiles has the columns of two of them: with two tiles of rows they are four sums.
#if defined(TROUPE_BF16_TILES)
inline constexpr std::int64_t kBf16DepthStep = 32;
inline constexpr std::int64_t kBf16PanelCols = 32;
#else
inline constexpr std::int64_t kBf16DepthStep = 2;
inline constexpr std::int64_t kBf16PanelCols = kPanelCols;
#endif

// Compressed weights (compact.hpp): header of a shard, and size of a pair of k of a panel.
inline constexpr std::int64_t kCompactHeaderBytes = 64;
inline constexpr std::int64_t kCompactPairBytes = kBf16PanelCols * 2 * 12 / 8;

TROUPE_INLINE constexpr std::int64_t panel_cols(ElementType type) {
  return type == ElementType::kBF16 ? kBf16PanelCols : kPanelCols;
}

struct PanelLayout {
  std::int64_t num_panels;
  std::int64_t cols;          ///< of a panel
  std::int64_t depth;         ///< of a shard
  std::int64_t padded_depth;  ///< as stored
  std::int64_t shard_bytes;
  std::int64_t panel_bytes;
  std::int64_t group_bytes = 0;  ///< of a quantised shard
};

/// Bytes of the numbers of a quantised group for all columns of a panel.
TROUPE_INLINE std::int64_t group_value_bytes(const WeightSpec& spec) {
  if (spec.quantized == QuantizedType::kInt8) return spec.group_size * kPanelCols;
  return ceil_div(spec.group_size, 2) * kPanelCols;
}
/// Bytes of its scales, and minimums.
TROUPE_INLINE std::int64_t group_scale_bytes(const WeightSpec& spec) {
  if (spec.quantized == QuantizedType::kFp4) return kPanelCols;
  return (spec.has_minimums ? 2 : 1) * kPanelCols * 2;
}

TROUPE_INLINE PanelLayout panel_layout(const WeightSpec& spec) {
  PanelLayout layout;
  layout.cols = spec.quantized == QuantizedType::kNone ? panel_cols(spec.type) : kPanelCols;
  layout.num_panels = spec.is_gated ? ceil_div(spec.num_rows / 2, layout.cols / 2)
                                    : ceil_div(spec.num_rows, layout.cols);
  layout.depth = spec.num_cols / spec.k_shards;
  if (spec.quantized != QuantizedType::kNone) {
    layout.padded_depth = spec.groups_per_shard() * spec.group_size;
    layout.group_bytes = group_value_bytes(spec) + group_scale_bytes(spec);
    layout.shard_bytes = spec.groups_per_shard() * layout.group_bytes;
    layout.panel_bytes = layout.shard_bytes * spec.k_shards;
    return layout;
  }
  layout.padded_depth =
      spec.type == ElementType::kBF16 ? round_up(layout.depth, kBf16DepthStep) : layout.depth;
  const std::int64_t number_bytes = spec.type == ElementType::kF32 ? 4 : 2;
  layout.shard_bytes = spec.is_compact
                           ? kCompactHeaderBytes + layout.padded_depth / 2 * kCompactPairBytes
                           : layout.padded_depth * layout.cols * number_bytes;
  layout.panel_bytes = layout.shard_bytes * spec.k_shards;
  return layout;
}

/// The position of a row of the matrix.
struct PanelColumn {
  std::int64_t panel;
  std::int64_t col;
};
TROUPE_INLINE PanelColumn panel_column(const WeightSpec& spec, const PanelLayout& layout,
                                       std::int64_t row) {
  if (!spec.is_gated) return {row / layout.cols, row % layout.cols};
  const std::int64_t half = layout.cols / 2;
  const std::int64_t num_gates = spec.num_rows / 2;
  if (row < num_gates) return {row / half, row % half};
  return {(row - num_gates) / half, half + (row - num_gates) % half};
}

/// The index of (k, column of the panel) in a shard.
template <ElementType kType>
TROUPE_INLINE constexpr std::int64_t position_in_shard(std::int64_t k, std::int64_t col) {
  if constexpr (kType != ElementType::kBF16) return k * kPanelCols + col;
  constexpr std::int64_t kTilePairs = kBf16DepthStep / 2;
  constexpr std::int64_t kTileCols = 16;
  const std::int64_t pair = k / 2;
  const std::int64_t tile = pair / kTilePairs * (kBf16PanelCols / kTileCols) + col / kTileCols;
  return ((tile * kTilePairs + pair % kTilePairs) * kTileCols + col % kTileCols) * 2 + k % 2;
}

}  // namespace troupe::TROUPE_ISA
