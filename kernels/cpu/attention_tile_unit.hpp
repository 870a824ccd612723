#pragma once
// The bf16 unit of AMX for attention: tiles of queries times tiles of keys, tiles of weights times
// tiles of values.

#include "kernels/cpu/attention_staging.hpp"
#include "kernels/cpu/tiles.hpp"

namespace troupe::TROUPE_ISA {

/// Owns this thread's tile configuration during its lifetime.
class AttentionUnit {
 public:
  /// The CPU executes vector code in parallel with it, if the instructions are close together.
  static constexpr bool kWorksBesideVectors = true;
  /// Up to this number of rows, memory is the bottleneck, not the unit.
  static constexpr int kFewRows = 16;
  /// Rows of values must be adjacent.
  static constexpr bool kReadsPages = false;

  static std::int64_t value_cols(int, std::int64_t, bool) { return 32; }

  /// scores[r * kChunkTokens + (0 ... 16 kGroups - 1)] = query r times the keys of kGroups groups.
  /// queries: [head_dim / 32, kQueryTileRows, 32]; keys: their pairs of elements are `stride` bytes
  /// apart. beside.step() is called for every 32 elements.
  template <int kGroups, class Beside>
  void score(int num_rows, std::int64_t head_dim, const std::uint16_t* queries,
             const std::byte* const (&keys)[2], std::int64_t stride, float* scores,
             Beside& beside) {
    begin(num_rows);
    const bool lower = num_rows > 16;
    for (std::int64_t d = 0; d < head_dim; d += 32) {
      const std::uint16_t* of_rows = queries + d * kQueryTileRows;
      TROUPE_TILE_LOAD(4, of_rows, 64);
      TROUPE_TILE_LOAD(6, keys[0] + d / 2 * stride, stride);
      TROUPE_TILE_DOT(0, 4, 6);
      if constexpr (kGroups == 2) {
        TROUPE_TILE_LOAD(7, keys[1] + d / 2 * stride, stride);
        TROUPE_TILE_DOT(1, 4, 7);
      }
      if (lower) {
        TROUPE_TILE_LOAD(5, of_rows + 16 * 32, 64);
        TROUPE_TILE_DOT(2, 5, 6);
        if constexpr (kGroups == 2) TROUPE_TILE_DOT(3, 5, 7);
      }
      beside.step();
    }
    constexpr std::int64_t kStride = kChunkTokens * 4;
    TROUPE_TILE_STORE(0, scores, kStride);
    if constexpr (kGroups == 2) TROUPE_TILE_STORE(1, scores + kGroupTokens, kStride);
    if (!lower) return;
    float* const of_lower = scores + 16 * kChunkTokens;
    TROUPE_TILE_STORE(2, of_lower, kStride);
    if constexpr (kGroups == 2) TROUPE_TILE_STORE(3, of_lower + kGroupTokens, kStride);
  }

  /// out[r, 0, 32) = weights of row r times values, over pairs of groups in order. weights: [pair
  /// of groups, kQueryTileRows, 32], from row 0 of pair 0 on. beside.step() is called for every
  /// pair.
  template <class ValuesOf, class Beside>
  void add_values(int num_rows, std::int64_t, std::int64_t first_pair, std::int64_t end_pair,
                  const std::uint16_t* weights, const ValuesOf& values_of, float* out,
                  std::int64_t out_stride, Beside& beside) {
    begin(num_rows);
    const bool lower = num_rows > 16;
    GroupValues next = values_of(first_pair);
    for (std::int64_t pair = first_pair; pair < end_pair; ++pair) {
      const GroupValues values = next;
      // Freshly stored data cannot be loaded as tiles for a while.
      if (pair + 1 < end_pair) next = values_of(pair + 1);
      const std::uint16_t* of_rows = weights + pair * kQueryTileRows * kPairTokens;
      TROUPE_TILE_LOAD(4, of_rows, 64);
      TROUPE_TILE_LOAD(6, values.groups[0], 64);
      TROUPE_TILE_DOT(0, 4, 6);
      TROUPE_TILE_LOAD(7, values.groups[0] + values.col_stride, 64);
      TROUPE_TILE_DOT(1, 4, 7);
      if (lower) {
        TROUPE_TILE_LOAD(5, of_rows + 16 * kPairTokens, 64);
        TROUPE_TILE_DOT(2, 5, 6);
        TROUPE_TILE_DOT(3, 5, 7);
      }
      beside.step();
    }
    const std::int64_t stride = out_stride * 4;
    TROUPE_TILE_STORE(0, out, stride);
    TROUPE_TILE_STORE(1, out + 16, stride);
    if (!lower) return;
    TROUPE_TILE_STORE(2, out + 16 * out_stride, stride);
    TROUPE_TILE_STORE(3, out + 16 * out_stride + 16, stride);
  }

 private:
  /// Sums are zero.
  TROUPE_INLINE void begin(int num_rows) {
    tiles_.use(num_rows, square_config);
    TROUPE_TILE_ZERO(0);
    TROUPE_TILE_ZERO(1);
    TROUPE_TILE_ZERO(2);
    TROUPE_TILE_ZERO(3);
  }

  ConfiguredTiles tiles_;
};

}  // namespace troupe::TROUPE_ISA
