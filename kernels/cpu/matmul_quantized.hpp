#pragma once
// The inner product of quantised numbers: a block of rows times one shard of a panel. Sums within a
// group are exact integers, so units may add them in any order; then
//   sums[r, n] += float(dot) * (scale[n, g] * x_scale[r, g])  [+ minimum[n, g] * x_sum[r, g]]
// group after group, with each operation rounded separately, on every instruction set.

#include "kernels/cpu/ints.hpp"
#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

namespace troupe::TROUPE_ISA {

// As kF32Rows: the sums of a group stay in registers.
#if defined(__AVX512F__)
inline constexpr int kQuantizedRows = 5;
#elif defined(__AVX2__)
inline constexpr int kQuantizedRows = 4;
#else
inline constexpr int kQuantizedRows = 1;
#endif

/// Activations quantised to integers, rows of one shard.
struct QuantizedGroup {
  float scale;       ///< x = scale * number
  float scaled_sum;  ///< scale * sum of the numbers
  std::int32_t sum;
};
struct QuantizedActivations {
  const std::int8_t* values = nullptr;
  const QuantizedGroup* groups = nullptr;
  std::int64_t value_stride = 0;  ///< between rows
  std::int64_t row_stride = 0;    ///< of the groups, between rows
  std::int64_t group_stride = 0;  ///< of the groups of a row

  [[nodiscard]] TROUPE_INLINE const QuantizedGroup& group(std::int64_t row, std::int64_t g) const {
    return groups[row * row_stride + g * group_stride];
  }
};

/// x[0, n), n <= group_size, as values[0, group_size): zeros beyond n. Infinities and NaN make the
/// scale NaN, and with it every product.
TROUPE_INLINE QuantizedGroup quantize_group(const float* x, std::int64_t n, std::int64_t group_size,
                                            std::int8_t* values) {
  const auto load_at = [&](std::int64_t i) {
    if (i + kLanes <= n) return load(x + i);
    return i < n ? load_first(x + i, n - i) : zero();
  };
  Vec largest = zero();
  Vec poison = zero();
  for (std::int64_t i = 0; i < group_size; i += kLanes) {
    const Vec v = load_at(i);
    largest = max(abs(v), largest);
    poison = poison + v * zero();
  }
  const float amax = max_of_lanes(largest);
  constexpr float kTooSmall = 0x1p-100f;  // 127 / amax stays finite above
  const Vec factor = broadcast(amax > kTooSmall ? 127.0f / amax : 0.0f);
  Vec sum = zero();
  for (std::int64_t i = 0; i < group_size; i += kLanes) {
    const Vec number = min(max(round(load_at(i) * factor), broadcast(-127.0f)), broadcast(127.0f));
    sum = sum + number;
    store_int8(values + i, number);
  }
  const float exact_sum = sum_of_lanes(sum);
  const float scale = (amax > kTooSmall ? amax / 127.0f : 0.0f) + sum_of_lanes(poison);
  return {scale, scale * exact_sum, static_cast<std::int32_t>(exact_sum)};
}

template <QuantizedType kType, int kRows>
void multiply_quantized(const WeightSpec& spec, std::int64_t group_bytes,
                        const QuantizedActivations& x, const std::byte* shard,
                        WeightPrefetcher prefetcher, float* sums) {
  constexpr int kVectors = static_cast<int>(kPanelCols / kLanes);
  constexpr std::int64_t kWordRow = kPanelCols * 4;  // four k of all columns
  constexpr bool kIsInt4 = kType == QuantizedType::kInt4;
  constexpr std::int32_t kBias = kIsInt4 ? kInt4Bias : kInt8Bias;
  const std::int64_t num_groups = spec.groups_per_shard();
  const std::int64_t value_bytes = group_value_bytes(spec);

  const auto activations = [&](int r, std::int64_t k) __attribute__((always_inline)) {
    std::int32_t word;
    std::memcpy(&word, x.values + r * x.value_stride + k, sizeof word);
    return broadcast_int(word);
  };
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  for (std::int64_t g = 0; g < num_groups; ++g) {
    const std::byte* group = shard + g * group_bytes;
    const std::int64_t first = g * spec.group_size;
    prefetcher.fetch(group + value_bytes, kPanelCols * 2);
    Ints dots[kRows][kVectors];
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Ints start = broadcast_int(-kBias * x.group(r, g).sum);
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) dots[r][v] = start;
    }
    if constexpr (kIsInt4) {
      for (std::int64_t k = 0; k < spec.group_size; k += 32) {
        TROUPE_UNROLL
        for (std::int64_t word = 0; word < 4; ++word) {
          const std::byte* row = group + (k / 8 + word) * kWordRow;
          prefetcher.fetch(row, kWordRow);
          TROUPE_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            const Ints both = load_ints(row + v * kLanes * 4);
            const Ints low = low_nibbles(both);
            const Ints high = high_nibbles(both);
            TROUPE_UNROLL
            for (int r = 0; r < kRows; ++r) {
              dots[r][v] = dot_int4(dots[r][v], low, activations(r, first + k + 4 * word));
              dots[r][v] = dot_int4(dots[r][v], high, activations(r, first + k + 16 + 4 * word));
            }
          }
        }
      }
    } else {
      for (std::int64_t k = 0; k < spec.group_size; k += 16) {
        TROUPE_UNROLL
        for (std::int64_t word = 0; word < 4; ++word) {
          const std::byte* row = group + (k / 4 + word) * kWordRow;
          prefetcher.fetch(row, kWordRow);
          TROUPE_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            const Ints w = load_ints(row + v * kLanes * 4);
            TROUPE_UNROLL
            for (int r = 0; r < kRows; ++r) {
              dots[r][v] = dot_int8(dots[r][v], w, activations(r, first + k + 4 * word));
            }
          }
        }
      }
    }
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = load_f16(group + value_bytes + v * kLanes * 2);
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vec x_scale = broadcast(x.group(r, g).scale);
        acc[r][v] = acc[r][v] + to_float(dots[r][v]) * (scale * x_scale);
      }
    }
    if (!spec.has_minimums) continue;
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vec minimum = load_f16(group + value_bytes + kPanelCols * 2 + v * kLanes * 2);
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = acc[r][v] + minimum * broadcast(x.group(r, g).scaled_sum);
      }
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(sums + r * kPanelCols + v * kLanes, acc[r][v]);
  }
}

/// multiply_quantized for 1 to kQuantizedRows rows.
template <QuantizedType kType>
TROUPE_INLINE void multiply_rows_quantized(int num_rows, const WeightSpec& spec,
                                           std::int64_t group_bytes, const QuantizedActivations& x,
                                           const std::byte* shard, WeightPrefetcher prefetcher,
                                           float* sums) {
  with_row_count<kQuantizedRows>(
      num_rows, [&](auto rows) __attribute__((always_inline)) {
        multiply_quantized<kType, decltype(rows)::value>(spec, group_bytes, x, shard, prefetcher,
                                                         sums);
      });
}

}  // namespace troupe::TROUPE_ISA
