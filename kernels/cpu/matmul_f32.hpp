#pragma once
// The inner product in f32: a block of rows times one shard of a panel.

#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

namespace troupe::TROUPE_ISA {

// Rows in a block: its sums, a number of each row and a vector of weights fit in the registers.
#if defined(__AVX512F__)
inline constexpr int kF32Rows = 6;
#elif defined(__AVX2__)
inline constexpr int kF32Rows = 4;
#else
inline constexpr int kF32Rows = 1;
#endif

/// sums[r, n] = sum over k = 0, 1, ... of x[r, k] * panel[k, n], in this order, one fused
/// multiply-add each. sums: [kRows, columns of the panel].
template <ElementType kType, int kRows>
void multiply_f32(const float* x, std::int64_t x_stride, const std::byte* shard, std::int64_t depth,
                  WeightPrefetcher prefetcher, float* sums) {
  constexpr std::int64_t kCols = panel_cols(kType);
  constexpr int kVectors = static_cast<int>(kCols / kLanes);
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  const auto accumulate = [&](std::int64_t k, int v, Vec w) __attribute__((always_inline)) {
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][v] = fma(broadcast(x[r * x_stride + k]), w, acc[r][v]);
    }
  };
  if constexpr (kType == ElementType::kBF16) {
    const auto address = [&](std::int64_t k, int v) __attribute__((always_inline)) {
      return shard + position_in_shard<kType>(k, v * kLanes) * 2;
    };
    const auto pairs = [&](std::int64_t k, int v) __attribute__((always_inline)) {
      return load_bf16_pairs(address(k, v));
    };
    for (std::int64_t k = 0; k + 1 < depth; k += 2) {
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; v += 16 / kLanes) prefetcher.fetch(address(k, v), 64);
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) accumulate(k, v, even(pairs(k, v)));
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) accumulate(k + 1, v, odd(pairs(k, v)));
    }
    if (depth % 2 != 0) {
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) accumulate(depth - 1, v, even(pairs(depth - 1, v)));
    }
  } else {
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::byte* row = shard + k * kCols * element_bytes(kType);
      prefetcher.fetch(row, kCols * element_bytes(kType));
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        accumulate(k, v, load_as<kType>(shard, k * kCols + v * kLanes));
      }
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(sums + r * kCols + v * kLanes, acc[r][v]);
  }
}

/// The same with weights of kFp4, which are widened exactly.
template <int kRows>
void multiply_fp4(const float* x, std::int64_t x_stride, const WeightSpec& spec,
                  const PanelLayout& layout, const std::byte* shard, WeightPrefetcher prefetcher,
                  float* sums) {
  constexpr int kVectors = static_cast<int>(kPanelCols / kLanes);
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  for (std::int64_t first = 0; first < layout.depth; first += spec.group_size) {
    const std::byte* scale_bytes = shard + group_value_bytes(spec);
    Vec scales[kVectors];
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) scales[v] = load_powers_of_2(scale_bytes + v * kLanes);
    const auto accumulate = [&](std::int64_t k, int v, Vec numbers) __attribute__((always_inline)) {
      const Vec w = numbers * scales[v];
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][v] = fma(broadcast(x[r * x_stride + k]), w, acc[r][v]);
    };
    const std::int64_t end = min_of(first + spec.group_size, layout.depth);
    const std::byte* pairs = shard;
    for (std::int64_t k = first; k < end; k += 2, pairs += kPanelCols) {
      prefetcher.fetch(pairs, kPanelCols);
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) accumulate(k, v, load_lower_fp4(pairs + v * kLanes));
      if (k + 1 == end) break;
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) accumulate(k + 1, v, load_upper_fp4(pairs + v * kLanes));
    }
    shard += layout.group_bytes;
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(sums + r * kPanelCols + v * kLanes, acc[r][v]);
  }
}

/// multiply_fp4 for 1 to kF32Rows rows.
TROUPE_INLINE void multiply_rows_fp4(int num_rows, const float* x, std::int64_t x_stride,
                                     const WeightSpec& spec, const PanelLayout& layout,
                                     const std::byte* shard, WeightPrefetcher prefetcher,
                                     float* sums) {
  with_row_count<kF32Rows>(
      num_rows, [&](auto rows) __attribute__((always_inline)) {
        multiply_fp4<decltype(rows)::value>(x, x_stride, spec, layout, shard, prefetcher, sums);
      });
}

/// multiply_f32 for 1 to kF32Rows rows.
template <ElementType kType>
TROUPE_INLINE void multiply_rows_f32(int num_rows, const float* x, std::int64_t x_stride,
                                     const std::byte* shard, std::int64_t depth,
                                     WeightPrefetcher prefetcher, float* sums) {
  with_row_count<kF32Rows>(
      num_rows, [&](auto rows) __attribute__((always_inline)) {
        multiply_f32<kType, decltype(rows)::value>(x, x_stride, shard, depth, prefetcher, sums);
      });
}

}  // namespace troupe::TROUPE_ISA
