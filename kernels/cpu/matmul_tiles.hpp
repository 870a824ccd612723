#pragma once
// The bf16 unit of AMX. A tile is 16 rows of 64 bytes: 16 x 32 activations, or 16 pairs of k x 16
// columns of a panel, or 16 x 16 sums.

#include "kernels/cpu/matmul_finish.hpp"
#include "kernels/cpu/rounded_rows.hpp"
#include "kernels/cpu/tiles.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

namespace troupe::TROUPE_ISA {

/// Runs the epilogue of a block while the next one is multiplied, some rows at each step: the CPU
/// executes both in parallel if the instructions are close together.
template <class Store>
class Finisher {
 public:
  explicit Finisher(const Store& store) : store_(store) {}

  /// The next block is multiplied in this many steps.
  TROUPE_INLINE void begin(std::int64_t num_steps) {
    rows_per_step_ = ceil_div(num_rows_, num_steps);
  }
  TROUPE_INLINE void step(std::int64_t step) const {
    const std::int64_t end = min_of(num_rows_, (step + 1) * rows_per_step_);
    for (std::int64_t r = step * rows_per_step_; r < end; ++r)
      store_.store_row(sums_, r, first_row_ + r, panel_, kBf16PanelCols);
  }
  /// Sets the sums of the block. Without rows: further sums will be added to them.
  TROUPE_INLINE void end(const BlockSums& sums, std::int64_t panel, std::int64_t first_row,
                         std::int64_t num_rows) {
    sums_ = sums;
    panel_ = panel;
    first_row_ = first_row;
    num_rows_ = num_rows;
  }
  /// Finishes the last block.
  TROUPE_INLINE void finish() const {
    store_block(store_, sums_, first_row_, num_rows_, panel_, kBf16PanelCols);
    store_.finish();
  }

 private:
  const Store& store_;
  BlockSums sums_{};
  std::int64_t panel_ = 0;
  std::int64_t first_row_ = 0;
  std::int64_t num_rows_ = 0;
  std::int64_t rows_per_step_ = 0;
};

/// Owns this thread's tile configuration during its lifetime.
class TileUnit {
 public:
  /// sums[r, n] = (fresh ? 0 : sums[r, n]) + sum over steps of 32 k in order, for rows first_row
  /// ... and k = first_k ... first_k + depth; both are whole tiles. num_rows: up to 32, or
  /// kTallRows. A row's sums depend neither on other rows nor on how the depth is split into calls.
  /// beside.step(i) is called at each step, before the sums are written.
  template <class Beside>
  void multiply(const RoundedRows& x, std::int64_t first_row, int num_rows, std::int64_t first_k,
                std::int64_t depth, const std::byte* weights, const Prefetch& prefetcher,
                const Beside& beside, bool fresh, float* sums) {
    tiles_.use(num_rows, config_of);
    const std::int64_t first_step = first_k / kBf16DepthStep;
    const std::int64_t num_steps = depth / kBf16DepthStep;
    const std::int64_t stride = x.step_stride(first_row);
    const std::uint16_t* upper = x.row(first_row) + first_step * stride;
    if (num_rows == kTallRows) {
      multiply_tall(upper, x.row(first_row + 16) - x.row(first_row), weights, num_steps, prefetcher,
                    beside, fresh, sums);
    } else if (num_rows <= 16) {
      multiply_flat(upper, stride, weights, num_steps, prefetcher, beside, fresh, sums);
    } else {
      const std::int64_t lower_stride = x.step_stride(first_row + 16);
      const std::uint16_t* lower = x.row(first_row + 16) + first_step * lower_stride;
      multiply_square(upper, stride, lower, lower_stride, weights, num_steps, prefetcher, beside,
                      fresh, sums);
    }
  }

  static constexpr std::int64_t kTallRows = 48;

 private:
  static constexpr std::int64_t kRowBytes = 64;  ///< of a tile
  static constexpr std::int64_t kTileBytes = 1024;
  static constexpr std::int64_t kTileCols = 16;  ///< sums in a row
  static constexpr std::int64_t kSumsStride = kBf16PanelCols * 4;
  static_assert(kBf16PanelCols == 2 * kTileCols);

  /// The tiles of activations and weights: see square_config. Of kTallRows, 0 to 5 are sums, 6
  /// activations, 7 weights.
  static TileConfig config_of(int num_rows) {
    return square_config(num_rows == kTallRows ? 32 : num_rows);
  }

  /// kTallRows rows: fewer bytes per product come from beyond the L1 cache, which has the
  /// activations that each step loads a second time.
  template <class Beside>
  static void multiply_tall(const std::uint16_t* x, std::int64_t row_tile_stride,
                            const std::byte* weights, std::int64_t num_steps,
                            const Prefetch& prefetcher, const Beside& beside, bool fresh,
                            float* sums) {
    constexpr std::int64_t kBlock = 16 * kBf16PanelCols;
    TROUPE_TILE_BEGIN(0, fresh, sums, kSumsStride);
    TROUPE_TILE_BEGIN(1, fresh, sums + kTileCols, kSumsStride);
    TROUPE_TILE_BEGIN(2, fresh, sums + kBlock, kSumsStride);
    TROUPE_TILE_BEGIN(3, fresh, sums + kBlock + kTileCols, kSumsStride);
    TROUPE_TILE_BEGIN(4, fresh, sums + 2 * kBlock, kSumsStride);
    TROUPE_TILE_BEGIN(5, fresh, sums + 2 * kBlock + kTileCols, kSumsStride);
    const std::uint16_t* middle = x + row_tile_stride;
    const std::uint16_t* lower = middle + row_tile_stride;
    for (std::int64_t step = 0; step < num_steps; ++step) {
      prefetcher.fetch(step);
      beside.step(step);
      TROUPE_TILE_LOAD(7, weights, kRowBytes);
      TROUPE_TILE_LOAD(6, x, kRowBytes);
      TROUPE_TILE_DOT(0, 6, 7);
      TROUPE_TILE_LOAD(6, middle, kRowBytes);
      TROUPE_TILE_DOT(2, 6, 7);
      TROUPE_TILE_LOAD(6, lower, kRowBytes);
      TROUPE_TILE_DOT(4, 6, 7);
      TROUPE_TILE_LOAD(7, weights + kTileBytes, kRowBytes);
      TROUPE_TILE_DOT(5, 6, 7);
      TROUPE_TILE_LOAD(6, middle, kRowBytes);
      TROUPE_TILE_DOT(3, 6, 7);
      TROUPE_TILE_LOAD(6, x, kRowBytes);
      TROUPE_TILE_DOT(1, 6, 7);
      x += 16 * kBf16DepthStep;
      middle += 16 * kBf16DepthStep;
      lower += 16 * kBf16DepthStep;
      weights += 2 * kTileBytes;
    }
    TROUPE_TILE_STORE(0, sums, kSumsStride);
    TROUPE_TILE_STORE(1, sums + kTileCols, kSumsStride);
    TROUPE_TILE_STORE(2, sums + kBlock, kSumsStride);
    TROUPE_TILE_STORE(3, sums + kBlock + kTileCols, kSumsStride);
    TROUPE_TILE_STORE(4, sums + 2 * kBlock, kSumsStride);
    TROUPE_TILE_STORE(5, sums + 2 * kBlock + kTileCols, kSumsStride);
  }

  template <class Beside>
  static void multiply_flat(const std::uint16_t* x, std::int64_t stride, const std::byte* weights,
                            std::int64_t num_steps, const Prefetch& prefetcher,
                            const Beside& beside, bool fresh, float* sums) {
    TROUPE_TILE_BEGIN(0, fresh, sums, kSumsStride);
    TROUPE_TILE_BEGIN(1, fresh, sums + kTileCols, kSumsStride);
    for (std::int64_t step = 0; step < num_steps; ++step) {
      prefetcher.fetch(step);
      beside.step(step);
      TROUPE_TILE_LOAD(4, x, kRowBytes);
      TROUPE_TILE_LOAD(6, weights, kRowBytes);
      TROUPE_TILE_DOT(0, 4, 6);
      TROUPE_TILE_LOAD(7, weights + kTileBytes, kRowBytes);
      TROUPE_TILE_DOT(1, 4, 7);
      x += stride;
      weights += 2 * kTileBytes;
    }
    TROUPE_TILE_STORE(0, sums, kSumsStride);
    TROUPE_TILE_STORE(1, sums + kTileCols, kSumsStride);
  }

  /// 17 to 32 rows: each loaded tile is used twice.
  template <class Beside>
  static void multiply_square(const std::uint16_t* x, std::int64_t stride,
                              const std::uint16_t* lower, std::int64_t lower_stride,
                              const std::byte* weights, std::int64_t num_steps,
                              const Prefetch& prefetcher, const Beside& beside, bool fresh,
                              float* sums) {
    TROUPE_TILE_BEGIN(0, fresh, sums, kSumsStride);
    TROUPE_TILE_BEGIN(1, fresh, sums + kTileCols, kSumsStride);
    TROUPE_TILE_BEGIN(2, fresh, sums + 16 * kBf16PanelCols, kSumsStride);
    TROUPE_TILE_BEGIN(3, fresh, sums + 16 * kBf16PanelCols + kTileCols, kSumsStride);
    for (std::int64_t step = 0; step < num_steps; ++step) {
      prefetcher.fetch(step);
      beside.step(step);
      TROUPE_TILE_LOAD(4, x, kRowBytes);
      TROUPE_TILE_LOAD(6, weights, kRowBytes);
      TROUPE_TILE_LOAD(7, weights + kTileBytes, kRowBytes);
      TROUPE_TILE_LOAD(5, lower, kRowBytes);
      TROUPE_TILE_DOT(0, 4, 6);
      TROUPE_TILE_DOT(1, 4, 7);
      TROUPE_TILE_DOT(2, 5, 6);
      TROUPE_TILE_DOT(3, 5, 7);
      x += stride;
      lower += lower_stride;
      weights += 2 * kTileBytes;
    }
    TROUPE_TILE_STORE(0, sums, kSumsStride);
    TROUPE_TILE_STORE(1, sums + kTileCols, kSumsStride);
    TROUPE_TILE_STORE(2, sums + 16 * kBf16PanelCols, kSumsStride);
    TROUPE_TILE_STORE(3, sums + 16 * kBf16PanelCols + kTileCols, kSumsStride);
  }

  ConfiguredTiles tiles_;
};

}  // namespace troupe::TROUPE_ISA
