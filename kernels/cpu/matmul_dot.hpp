#pragma once
// The bf16 unit of AVX512_BF16: an instruction adds the products of two pairs to each of 16 sums.

#include "kernels/cpu/bf16.hpp"
#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/weights_ahead.hpp"

namespace troupe::TROUPE_ISA {

class DotUnit {
 public:
  static constexpr int kMaxRows = 6;

  /// sums[r, n] = sum over pairs of k in order; x: bf16 rows, depth is a multiple of 2.
  void multiply(int num_rows, const std::uint16_t* x, std::int64_t x_stride, const std::byte* shard,
                std::int64_t depth, WeightsAhead ahead, float* sums) {
    with_row_count<kMaxRows>(
        num_rows, [&](auto rows) __attribute__((always_inline)) {
          multiply_rows<decltype(rows)::value>(x, x_stride, shard, depth, ahead, sums);
        });
  }

 private:
  template <int kRows>
  static void multiply_rows(const std::uint16_t* x, std::int64_t x_stride, const std::byte* shard,
                            std::int64_t depth, WeightsAhead ahead, float* sums) {
    constexpr int kVectors = static_cast<int>(kPanelCols / kLanes);
    __m512 acc[kRows][kVectors];
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < depth; k += 2) {
      const std::byte* row = shard + k * kPanelCols * 2;
      ahead.fetch(row, kPanelCols * 4);
      __m512bh pair[kRows];
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        int bits;
        std::memcpy(&bits, x + r * x_stride + k, sizeof bits);
        pair[r] = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
      }
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512bh w = reinterpret_cast<__m512bh>(_mm512_loadu_si512(row + v * kLanes * 4));
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], pair[r], w);
      }
    }
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        _mm512_storeu_ps(sums + r * kPanelCols + v * kLanes, acc[r][v]);
      }
    }
  }
};

}  // namespace troupe::TROUPE_ISA
