#pragma once
// Activations in the input format of a bf16 unit.

#include "kernels/cpu/bf16.hpp"
#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

/// [num_rows, num_shards, padded_depth], padded with zeros.
///
/// For tile units they are stored tile by tile: 16 rows (fewer at the end), of these one step of 32
/// k after the other, each row by row.
class RoundedRows {
 public:
  RoundedRows(std::byte* data, std::int64_t num_rows, std::int64_t num_shards,
              const PanelLayout& layout)
      : data_(reinterpret_cast<std::uint16_t*>(data)),
        num_rows_(num_rows),
        num_shards_(num_shards),
        depth_(layout.depth),
        padded_depth_(layout.padded_depth) {}

  [[nodiscard]] TROUPE_INLINE std::int64_t num_rows() const { return num_rows_; }
  /// Numbers of a row.
  [[nodiscard]] TROUPE_INLINE std::int64_t row_depth() const { return num_shards_ * padded_depth_; }
  /// Whether 16 columns from a multiple of 16 on are adjacent, without padding.
  [[nodiscard]] TROUPE_INLINE static bool takes_vectors(const PanelLayout& layout) {
    return layout.depth % 32 == 0;
  }

#if defined(TROUPE_BF16_TILES)
  /// The row's first step; further ones follow at step_stride(row) numbers.
  [[nodiscard]] TROUPE_INLINE std::uint16_t* row(std::int64_t row) const {
    return data_ + row / 16 * 16 * row_depth() + row % 16 * kBf16DepthStep;
  }
  [[nodiscard]] TROUPE_INLINE std::int64_t step_stride(std::int64_t row) const {
    return min_of(16, num_rows_ - row / 16 * 16) * kBf16DepthStep;
  }
  /// Pre: takes_vectors.
  [[nodiscard]] TROUPE_INLINE std::uint16_t* at(std::int64_t i, std::int64_t col) const {
    return row(i) + col / kBf16DepthStep * step_stride(i) + col % kBf16DepthStep;
  }

  /// Tile after tile in memory order, since writing adjacent lines is much faster than writing
  /// those of one row, which are a tile apart.
  void round(const OpContext& context, ConstMatrix x) const {
    constexpr std::int64_t kStepsAtOnce = 16;
    const std::int64_t shard_steps = padded_depth_ / kBf16DepthStep;
    const std::int64_t num_steps = row_depth() / kBf16DepthStep;
    const std::int64_t row_chunks = ceil_div(num_steps, kStepsAtOnce);
    context.pool->parallel_for(ceil_div(num_rows_, 16) * row_chunks, [&](std::int64_t chunk) {
      const std::int64_t first_row = chunk / row_chunks * 16;
      const std::int64_t rows = min_of(16, num_rows_ - first_row);
      const std::int64_t first_step = chunk % row_chunks * kStepsAtOnce;
      const std::int64_t end_step = min_of(num_steps, first_step + kStepsAtOnce);
      for (std::int64_t step = first_step; step < end_step; ++step) {
        const std::int64_t k = step % shard_steps * kBf16DepthStep;
        const std::int64_t count = min_of(kBf16DepthStep, depth_ - k);
        const float* from = x.row(first_row) + step / shard_steps * depth_ + k;
        std::uint16_t* to = row(first_row) + step * step_stride(first_row);
        for (std::int64_t r = 0; r < rows; ++r)
          round_to_bf16(from + r * x.row_stride, count, kBf16DepthStep, to + r * kBf16DepthStep);
      }
    });
  }
#else
  /// Number k of a shard of a row.
  [[nodiscard]] TROUPE_INLINE std::uint16_t* row(std::int64_t row, std::int64_t shard) const {
    return data_ + row * row_depth() + shard * padded_depth_;
  }
  /// Pre: takes_vectors.
  [[nodiscard]] TROUPE_INLINE std::uint16_t* at(std::int64_t row, std::int64_t col) const {
    return data_ + row * row_depth() + col;
  }

  void round(const OpContext& context, ConstMatrix x) const {
    for_each_row(context, num_rows_, x.num_cols, [&](std::int64_t i) {
      for (std::int64_t s = 0; s < num_shards_; ++s)
        round_to_bf16(x.row(i) + s * depth_, depth_, padded_depth_, row(i, s));
    });
  }
#endif

  /// Stores 16 numbers from column `col` on. Pre: takes_vectors.
  template <class StoreLanes>
  TROUPE_INLINE void put(std::int64_t row, std::int64_t col, Vec x, const StoreLanes&) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at(row, col)),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)));
  }

 private:
  std::uint16_t* data_;
  std::int64_t num_rows_;
  std::int64_t num_shards_;
  std::int64_t depth_;
  std::int64_t padded_depth_;
};

}  // namespace troupe::TROUPE_ISA
