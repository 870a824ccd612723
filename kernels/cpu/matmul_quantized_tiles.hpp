#pragma once
// multiply_quantized for many rows, with the int8 unit of AMX: the same integer sums of each group,
// and the same f32 sums in the same order, so that any number of rows has the same bits.
//
// A stretch of a panel is unpacked once for all rows of a chunk: its numbers as signed bytes, tile
// by tile, its scales as f32. For short groups, most of the time is spent on converting integer
// sums to f32.

#include "kernels/cpu/matmul_quantized.hpp"
#include "kernels/cpu/tiles.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

namespace troupe::TROUPE_ISA {

inline constexpr std::int64_t kTileRows = 16;
/// Length of an unpacked stretch in k: with the activations of some rows, it fits in the L1 cache.
inline constexpr std::int64_t kQuantizedStretch = 512;

/// An unpacked stretch of one shard of a panel.
struct alignas(64) UnpackedStretch {
  static constexpr std::int64_t kColTiles = kPanelCols / 16;
  std::int8_t numbers[kColTiles][kQuantizedStretch / 4][64];  ///< four k of 16 columns in a row
  float scales[kQuantizedStretch / 16][kPanelCols];
  float minimums[kQuantizedStretch / 16][kPanelCols];
};

/// Unpacks groups [first, first + count) of a shard.
template <QuantizedType kType>
void unpack_stretch(const WeightSpec& spec, std::int64_t group_bytes, const std::byte* shard,
                    std::int64_t first, std::int64_t count, UnpackedStretch& to) {
  constexpr std::int64_t kWordRow = kPanelCols * 4;
  const std::int64_t value_bytes = group_value_bytes(spec);
  const std::int64_t word_rows = spec.group_size / 4;
  for (std::int64_t g = 0; g < count; ++g) {
    const std::byte* group = shard + (first + g) * group_bytes;
    for (std::int64_t tile = 0; tile < UnpackedStretch::kColTiles; ++tile) {
      std::int8_t(*rows)[64] = to.numbers[tile] + g * word_rows;
      const std::byte* from = group + tile * 64;
      if constexpr (kType == QuantizedType::kInt4) {
        const __m512i bias = _mm512_set1_epi8(kInt4Bias);
        for (std::int64_t i = 0; i < word_rows; i += 8) {
          for (std::int64_t word = 0; word < 4; ++word) {
            const Ints both = load_ints(from + (i / 2 + word) * kWordRow);
            _mm512_store_si512(rows[i + word], _mm512_sub_epi8(low_nibbles(both).v, bias));
            _mm512_store_si512(rows[i + 4 + word], _mm512_sub_epi8(high_nibbles(both).v, bias));
          }
        }
      } else {
        const __m512i bias = _mm512_set1_epi8(static_cast<char>(kInt8Bias));
        for (std::int64_t i = 0; i < word_rows; ++i)
          _mm512_store_si512(rows[i], _mm512_xor_si512(load_ints(from + i * kWordRow).v, bias));
      }
      const std::byte* scales = group + value_bytes + tile * 32;
      store(to.scales[g] + tile * 16, load_f16(scales));
      if (spec.has_minimums) store(to.minimums[g] + tile * 16, load_f16(scales + kPanelCols * 2));
    }
  }
}

/// Owns this thread's tile configuration during its lifetime.
class QuantizedTileUnit {
 public:
  /// If a group does not fill whole tiles, this many k are multiplied at once: 16, 32 or 64.
  explicit QuantizedTileUnit(std::int64_t group_size)
      : depth_(group_size % 64 == 0   ? 64
               : group_size % 32 == 0 ? 32
                                      : 16) {}

  /// The number of prefetch steps in multiply.
  static constexpr std::int64_t num_steps(std::int64_t num_groups) {
    return UnpackedStretch::kColTiles * num_groups;
  }
  /// sums[r, n] (kPanelCols apart) = (fresh ? 0 : sums[r, n]) + the groups of the stretch in order,
  /// for up to kTileRows rows, whose activations start at those of the stretch. `x` has the groups
  /// of kTileRows rows, and `sums` room for as many; rows beyond num_rows are undefined.
  template <bool kHasMinimums>
  void multiply(std::int64_t group_size, const QuantizedActivations& x, int num_rows,
                std::int64_t num_groups, const UnpackedStretch& stretch, const Prefetch& prefetcher,
                bool fresh, float* sums) {
    tiles_.use(num_rows, [this](int rows) { return config_of(rows); });
    if (num_rows <= kTileRows / 2)
      multiply_rows<kHasMinimums, kTileRows / 2>(group_size, x, num_groups, stretch, prefetcher,
                                                 fresh, sums);
    else
      multiply_rows<kHasMinimums, kTileRows>(group_size, x, num_groups, stretch, prefetcher, fresh,
                                             sums);
  }

 private:
  /// Tile 0: a group's sums, 1: activations, 2: weights.
  [[nodiscard]] TileConfig config_of(int num_rows) const {
    TileConfig config;
    config.row_bytes[0] = config.row_bytes[2] = 64;
    config.row_bytes[1] = static_cast<std::uint16_t>(depth_);
    config.num_rows[0] = config.num_rows[1] = static_cast<std::uint8_t>(num_rows);
    config.num_rows[2] = static_cast<std::uint8_t>(depth_ / 4);
    return config;
  }

  template <bool kHasMinimums, int kRows>
  void multiply_rows(std::int64_t group_size, const QuantizedActivations& x,
                     std::int64_t num_groups, const UnpackedStretch& stretch,
                     const Prefetch& prefetcher, bool fresh, float* sums) {
    for (std::int64_t tile = 0; tile < UnpackedStretch::kColTiles; ++tile) {
      float* out = sums + tile * 16;
      Vec acc[kRows];
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r] = fresh ? zero() : load(out + r * kPanelCols);
      multiply_group(group_size, x, 0, stretch.numbers[tile]);
      for (std::int64_t g = 0; g < num_groups; ++g) {
        prefetcher.fetch(tile * num_groups + g);
        // The next group's products run while this one's are converted to f32.
        if (g + 1 < num_groups) multiply_group(group_size, x, g + 1, stretch.numbers[tile]);
        const Vec scale = load(stretch.scales[g] + tile * 16);
        const QuantizedGroup* groups = x.groups + g * x.group_stride;
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          acc[r] =
              acc[r] + to_float(load_ints(dots_[g % 2][r])) * (scale * broadcast(groups[r].scale));
        }
        if constexpr (!kHasMinimums) continue;
        const Vec minimum = load(stretch.minimums[g] + tile * 16);
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + minimum * broadcast(groups[r].scaled_sum);
      }
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) store(out + r * kPanelCols, acc[r]);
    }
  }

  TROUPE_INLINE void multiply_group(std::int64_t group_size, const QuantizedActivations& x,
                                    std::int64_t g, const std::int8_t (*numbers)[64]) {
    TROUPE_TILE_ZERO(0);
    for (std::int64_t k = g * group_size; k < (g + 1) * group_size; k += depth_) {
      TROUPE_TILE_LOAD(1, x.values + k, x.value_stride);
      TROUPE_TILE_LOAD(2, numbers + k / 4, 64);
      TROUPE_TILE_DOT_INT8(0, 1, 2);
    }
    TROUPE_TILE_STORE(0, dots_[g % 2], 64);
  }

  std::int64_t depth_;
  ConfiguredTiles tiles_;
  alignas(64) std::int32_t dots_[2][kTileRows][16] = {};
};

}  // namespace troupe::TROUPE_ISA
