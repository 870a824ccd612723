#pragma once
// How a weight matrix lies in memory after packing.
//
// Output rows are cut in panels of kPanelCols (they are the columns of the product); a panel holds
// its shards of K one after the other, and a shard is a sequence over k of kPanelCols numbers. For
// bf16 two neighbouring k are interleaved, ((k, n), (k + 1, n)) in one 32-bit word: what bf16 units
// take, and what widens to f32 with one shift or mask. So any number of activation rows reads a
// panel once, from beginning to end.

#include "kernels/cpu/simd.hpp"
#include "kernels/ops.hpp"

#if defined(__AMX_BF16__) || defined(TROUPE_EMULATE_TILES)
#define TROUPE_BF16_TILES
#elif defined(__AVX512BF16__)
#define TROUPE_BF16_DOT
#endif

namespace troupe::TROUPE_ISA {

#if defined(__AVX512F__)
inline constexpr std::int64_t kPanelCols = 64;
#else
inline constexpr std::int64_t kPanelCols = 16;
#endif
inline constexpr std::int64_t kMaxShards = 4;

// bf16 shards are padded with zeros to whole steps of the unit: a pair, or the depth of a tile.
#if defined(TROUPE_BF16_TILES)
inline constexpr std::int64_t kBf16DepthStep = 32;
#else
inline constexpr std::int64_t kBf16DepthStep = 2;
#endif

struct PanelLayout {
  std::int64_t num_panels;
  std::int64_t depth;         ///< of a shard
  std::int64_t padded_depth;  ///< as stored
  std::int64_t shard_bytes;
  std::int64_t panel_bytes;
};

TROUPE_INLINE PanelLayout panel_layout(const WeightSpec& spec) {
  PanelLayout layout;
  layout.num_panels = ceil_div(spec.num_rows, kPanelCols);
  layout.depth = spec.num_cols / spec.k_shards;
  layout.padded_depth =
      spec.type == ElementType::kBF16 ? round_up(layout.depth, kBf16DepthStep) : layout.depth;
  const std::int64_t number_bytes = spec.type == ElementType::kF32 ? 4 : 2;
  layout.shard_bytes = layout.padded_depth * kPanelCols * number_bytes;
  layout.panel_bytes = layout.shard_bytes * spec.k_shards;
  return layout;
}

/// Where (k, column of the panel) is in a shard, in numbers.
template <ElementType kType>
TROUPE_INLINE std::int64_t position_in_shard(std::int64_t k, std::int64_t col) {
  if constexpr (kType == ElementType::kBF16) return (k / 2 * kPanelCols + col) * 2 + k % 2;
  return k * kPanelCols + col;
}

}  // namespace troupe::TROUPE_ISA
