#pragma once
// The bf16 unit of AVX512_BF16 for attention: an instruction adds the products of two pairs to each
// of 16 sums. A pair is two elements of a query and of its key, or two weights and their values.

#include "kernels/cpu/attention_staging.hpp"
#include "kernels/cpu/row_blocks.hpp"

namespace troupe::TROUPE_ISA {

class AttentionUnit {
 public:
  /// It shares execution ports with the softmax's vector code: interleaving gains nothing.
  static constexpr bool kWorksBesideVectors = false;
  /// Up to this number of rows, memory is the bottleneck, not the unit.
  static constexpr int kFewRows = 8;
  /// Whether values are read in place, if pairs are adjacent there.
  static constexpr bool kReadsPages = true;

  /// How many of the `rest` elements of values that are left are processed at once: for few rows
  /// many, which are adjacent. A slice holds 32 at most.
  static std::int64_t value_cols(int num_rows, std::int64_t rest, bool in_slices) {
    if (in_slices) return min_of(32, rest);
    if (num_rows <= 2 && rest % 128 == 0) return 128;
    if (num_rows <= 4 && rest % 64 == 0) return 64;
    return rest <= 48 ? rest : 32;
  }

  /// scores[r * kChunkTokens + (0 ... 16 kGroups - 1)] = query r times the keys of kGroups groups.
  /// queries: [ceil(head_dim / 32), kQueryTileRows, 32]; keys: their pairs of elements are `stride`
  /// bytes apart.
  template <int kGroups, class Beside>
  void score(int num_rows, std::int64_t head_dim, const std::uint16_t* queries,
             const std::byte* const (&keys)[2], std::int64_t stride, float* scores, Beside&) {
    in_blocks<kFewRows>(
        num_rows, [&](int first, auto rows) __attribute__((always_inline)) {
          Sums<decltype(rows)::value, kGroups> sums;
          for (std::int64_t d = 0; d < head_dim; d += 32) {
            const std::byte* from[kGroups];
            TROUPE_UNROLL
            for (int g = 0; g < kGroups; ++g) from[g] = keys[g] + d / 2 * stride;
            sums.add(min_of(16, (head_dim - d) / 2), queries + d * kQueryTileRows + first * 32,
                     from, stride);
          }
          sums.store(scores + first * kChunkTokens, kChunkTokens);
        });
  }

  /// out[r, 0, num_cols) = weights of row r times values, over pairs of groups in order. weights:
  /// [pair of groups, kQueryTileRows, 32], from row 0 of pair 0 on; num_cols: see value_cols.
  template <class ValuesOf, class Beside>
  void add_values(int num_rows, std::int64_t num_cols, std::int64_t first_pair,
                  std::int64_t end_pair, const std::uint16_t* weights, const ValuesOf& values_of,
                  float* out, std::int64_t out_stride, Beside&) {
    const Weighing weighing{num_rows, first_pair, end_pair, weights, ValueSource(values_of),
                            out,      out_stride};
    if (num_cols == 128) return add_values_of<2, 8>(weighing);
    if (num_cols == 64) return add_values_of<4, 4>(weighing);
    if (num_cols == 32) return add_values_of<kFewRows, 2>(weighing);
    if (num_cols == 40) return add_values_of<6, 3, true>(weighing);
    if (num_cols == 48) return add_values_of<6, 3>(weighing);
    if (num_cols == 24) return add_values_of<kFewRows, 2, true>(weighing);
    if (num_cols == 16) return add_values_of<kFewRows, 1>(weighing);
    add_values_of<kFewRows, 1, true>(weighing);
  }

 private:
  /// The values of each pair of groups, by a call: the sums are compiled once for all cache types.
  class ValueSource {
   public:
    template <class ValuesOf>
    explicit ValueSource(const ValuesOf& values_of)
        : values_of_(&values_of), call_([](const void* of, std::int64_t pair) {
            return (*static_cast<const ValuesOf*>(of))(pair);
          }) {}
    GroupValues operator()(std::int64_t pair) const { return call_(values_of_, pair); }

   private:
    const void* values_of_;
    GroupValues (*call_)(const void*, std::int64_t);
  };

  /// Arguments of add_values.
  struct Weighing {
    int num_rows;
    std::int64_t first_pair;
    std::int64_t end_pair;
    const std::uint16_t* weights;
    ValueSource values_of;
    float* out;
    std::int64_t out_stride;
  };

  /// A block of rows and vectors in registers; with kHasHalf the last vector is half of one.
  template <int kRows, int kVectors, bool kHasHalf = false>
  struct Sums {
    static constexpr int kWhole = kVectors - (kHasHalf ? 1 : 0);
    __m512 sums[kRows][kWhole > 0 ? kWhole : 1];
    __m256 halves[kRows];

    TROUPE_INLINE Sums() {
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        TROUPE_UNROLL
        for (int v = 0; v < kWhole; ++v) sums[r][v] = _mm512_setzero_ps();
        halves[r] = _mm256_setzero_ps();
      }
    }
    /// num_pairs pairs of row r, at x + 32 r, times those of each vector, `stride` bytes apart.
    TROUPE_INLINE void add(std::int64_t num_pairs, const std::uint16_t* x,
                           const std::byte* const (&vectors)[kVectors], std::int64_t stride) {
      for (std::int64_t p = 0; p < num_pairs; ++p) {
        __m512bh factors[kVectors];
        TROUPE_UNROLL
        for (int v = 0; v < kWhole; ++v)
          factors[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(vectors[v] + p * stride));
        __m256bh half_factors;
        if constexpr (kHasHalf) {
          half_factors = reinterpret_cast<__m256bh>(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vectors[kWhole] + p * stride)));
        }
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          int bits;
          std::memcpy(&bits, x + r * 32 + p * 2, sizeof bits);
          const __m512i pair = _mm512_set1_epi32(bits);
          TROUPE_UNROLL
          for (int v = 0; v < kWhole; ++v)
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], reinterpret_cast<__m512bh>(pair), factors[v]);
          if constexpr (kHasHalf) {
            halves[r] = _mm256_dpbf16_ps(
                halves[r], reinterpret_cast<__m256bh>(_mm512_castsi512_si256(pair)), half_factors);
          }
        }
      }
    }
    TROUPE_INLINE void store(float* to, std::int64_t row_stride) const {
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        TROUPE_UNROLL
        for (int v = 0; v < kWhole; ++v)
          _mm512_storeu_ps(to + r * row_stride + v * kLanes, sums[r][v]);
        if constexpr (kHasHalf) _mm256_storeu_ps(to + r * row_stride + kWhole * kLanes, halves[r]);
      }
    }
  };

  /// f(first row, RowCount of the block).
  template <int kMaxRows, class F>
  TROUPE_INLINE static void in_blocks(int num_rows, const F& f) {
    for (int row = 0, rows = 0; row < num_rows; row += rows) {
      rows = static_cast<int>(next_block_rows(num_rows - row, kMaxRows));
      with_row_count<kMaxRows>(
          rows, [&](auto count) __attribute__((always_inline)) { f(row, count); });
    }
  }

  /// With kHasHalf, the last of kVectors vectors of columns is half of one.
  template <int kMaxRows, int kVectors, bool kHasHalf = false>
  static void add_values_of(const Weighing& w) {
    in_blocks<kMaxRows>(
        w.num_rows, [&](int first, auto rows) __attribute__((always_inline)) {
          Sums<decltype(rows)::value, kVectors, kHasHalf> sums;
          for (std::int64_t pair = w.first_pair; pair < w.end_pair; ++pair) {
            const GroupValues values = w.values_of(pair);
            const std::uint16_t* x = w.weights + (pair * kQueryTileRows + first) * kPairTokens;
            TROUPE_UNROLL
            for (int g = 0; g < 2; ++g, x += kGroupTokens) {
              if (values.groups[g] == nullptr) continue;  // masked for all rows
              const std::byte* from[kVectors];
              TROUPE_UNROLL
              for (int v = 0; v < kVectors; ++v) from[v] = values.groups[g] + v * values.col_stride;
              sums.add(kGroupTokens / 2, x, from, values.row_stride);
            }
          }
          sums.store(w.out + first * w.out_stride, w.out_stride);
        });
  }
};

}  // namespace troupe::TROUPE_ISA
