#pragma once
// The bf16 unit of AMX. A tile is 16 rows of 64 bytes: 16 x 32 activations, or 16 pairs of k x 16
// columns of a panel, or 16 x 16 sums.

#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/tiles.hpp"

namespace troupe::TROUPE_ISA {

/// Holds this thread's tile configuration while it lives.
class Bf16Unit {
 public:
  static constexpr int kMaxRows = 32;

  Bf16Unit() = default;
  ~Bf16Unit() {
    if (configured_rows_ != 0) release_tiles();
  }
  Bf16Unit(const Bf16Unit&) = delete;
  Bf16Unit& operator=(const Bf16Unit&) = delete;

  /// sums[r, n] = sum over tiles of 32 k in order; x: bf16 rows, depth is a multiple of 32. A row's
  /// sums do not depend on the other rows of its tile, nor on which of the two shapes below
  /// computes them.
  void multiply(int num_rows, const std::uint16_t* x, std::int64_t x_stride, const std::byte* shard,
                std::int64_t depth, float* sums) {
    configure(num_rows);
    if (num_rows <= 16) {
      multiply_flat(x, x_stride, shard, depth, sums);
    } else {
      multiply_square(x, x_stride, shard, depth, sums);
      multiply_square(x, x_stride, shard + 2 * kTileRowBytes, depth, sums + 2 * kTileCols);
    }
  }

 private:
  static constexpr std::int64_t kTileRowBytes = 64;
  static constexpr std::int64_t kTileCols = 16;   ///< sums in a row
  static constexpr std::int64_t kTileDepth = 32;  ///< activations in a row
  static constexpr std::int64_t kPanelStride = kPanelCols * 4;
  static constexpr std::int64_t kSumsStride = kPanelCols * 4;
  static_assert(kPanelCols == 4 * kTileCols);

  /// Up to 16 rows: tile 4 is x; its sums for the panel's four column tiles are 0 to 3. More: 4 and
  /// 5 are x, the sums of two column tiles are 0, 1 and 2, 3. Tiles 6 and 7 are weights.
  void configure(int num_rows) {
    if (num_rows == configured_rows_) return;
    configured_rows_ = num_rows;
    const int upper_rows = num_rows < 16 ? num_rows : 16;
    const int lower_rows = num_rows <= 16 ? upper_rows : num_rows - 16;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = kTileRowBytes;
      const bool lower = tile == 2 || tile == 3 || tile == 5;
      const bool weights = tile >= 6;
      config.num_rows[tile] =
          static_cast<std::uint8_t>(weights ? 16 : (lower ? lower_rows : upper_rows));
    }
    load_tile_config(config);
  }

  static void multiply_flat(const std::uint16_t* x, std::int64_t x_stride, const std::byte* shard,
                            std::int64_t depth, float* sums) {
    TROUPE_TILE_ZERO(0);
    TROUPE_TILE_ZERO(1);
    TROUPE_TILE_ZERO(2);
    TROUPE_TILE_ZERO(3);
    for (std::int64_t k = 0; k < depth; k += kTileDepth) {
      const std::byte* weights = shard + k / 2 * kPanelStride;
      TROUPE_TILE_LOAD(4, x + k, x_stride * 2);
      TROUPE_TILE_LOAD(6, weights, kPanelStride);
      TROUPE_TILE_DOT(0, 4, 6);
      TROUPE_TILE_LOAD(7, weights + kTileRowBytes, kPanelStride);
      TROUPE_TILE_DOT(1, 4, 7);
      TROUPE_TILE_LOAD(6, weights + 2 * kTileRowBytes, kPanelStride);
      TROUPE_TILE_DOT(2, 4, 6);
      TROUPE_TILE_LOAD(7, weights + 3 * kTileRowBytes, kPanelStride);
      TROUPE_TILE_DOT(3, 4, 7);
    }
    TROUPE_TILE_STORE(0, sums, kSumsStride);
    TROUPE_TILE_STORE(1, sums + kTileCols, kSumsStride);
    TROUPE_TILE_STORE(2, sums + 2 * kTileCols, kSumsStride);
    TROUPE_TILE_STORE(3, sums + 3 * kTileCols, kSumsStride);
  }

  /// 17 to 32 rows by two column tiles: each tile loaded is used twice.
  static void multiply_square(const std::uint16_t* x, std::int64_t x_stride, const std::byte* shard,
                              std::int64_t depth, float* sums) {
    TROUPE_TILE_ZERO(0);
    TROUPE_TILE_ZERO(1);
    TROUPE_TILE_ZERO(2);
    TROUPE_TILE_ZERO(3);
    for (std::int64_t k = 0; k < depth; k += kTileDepth) {
      const std::byte* weights = shard + k / 2 * kPanelStride;
      TROUPE_TILE_LOAD(4, x + k, x_stride * 2);
      TROUPE_TILE_LOAD(6, weights, kPanelStride);
      TROUPE_TILE_LOAD(7, weights + kTileRowBytes, kPanelStride);
      TROUPE_TILE_LOAD(5, x + 16 * x_stride + k, x_stride * 2);
      TROUPE_TILE_DOT(0, 4, 6);
      TROUPE_TILE_DOT(1, 4, 7);
      TROUPE_TILE_DOT(2, 5, 6);
      TROUPE_TILE_DOT(3, 5, 7);
    }
    TROUPE_TILE_STORE(0, sums, kSumsStride);
    TROUPE_TILE_STORE(1, sums + kTileCols, kSumsStride);
    TROUPE_TILE_STORE(2, sums + 16 * kPanelCols, kSumsStride);
    TROUPE_TILE_STORE(3, sums + 16 * kPanelCols + kTileCols, kSumsStride);
  }

  int configured_rows_ = 0;
};

}  // namespace troupe::TROUPE_ISA
