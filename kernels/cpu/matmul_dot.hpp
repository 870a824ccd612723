#pragma once
// The bf16 unit of AVX512_BF16: an instruction adds the products of two pairs to each of 16 sums.

#include "kernels/cpu/bf16.hpp"
#include "kernels/cpu/compact.hpp"
#include "kernels/cpu/matmul_layout.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

namespace troupe::TROUPE_ISA {

// Sources of weight lines: those of a pair of k, pair after pair. at(pair) is their address for
// prefetching, kPairBytes for a pair.

/// Uncompressed weights.
class PlainLines {
 public:
  static constexpr bool kInRegisters = false;
  static constexpr std::int64_t kPairBytes = kPairLines * 64;

  explicit PlainLines(const std::byte* lines) : lines_(lines) {}
  [[nodiscard]] TROUPE_INLINE const std::byte* at(std::int64_t pair) const {
    return lines_ + pair * kPairBytes;
  }
  [[nodiscard]] TROUPE_INLINE __m512i line(std::int64_t pair, int i) const {
    return _mm512_loadu_si512(at(pair) + i * 64);
  }

 private:
  const std::byte* lines_;
};

/// Unpacks compressed weights, and keeps them for the following blocks of rows.
class KeepingLines {
 public:
  static constexpr bool kInRegisters = true;
  static constexpr std::int64_t kPairBytes = CompactLines::kPairBytes;

  /// kept: aligned to 64.
  KeepingLines(const CompactLines& from, std::int64_t first_pair, std::byte* kept)
      : from_(from), first_pair_(first_pair), kept_(kept) {}
  /// What follows the loaded lines.
  [[nodiscard]] const CompactLines& rest() const { return from_; }
  [[nodiscard]] TROUPE_INLINE const std::byte* at(std::int64_t pair) const {
    return from_.at(first_pair_ + pair);
  }
  TROUPE_INLINE void load(std::int64_t pair, __m512i (&lines)[kPairLines]) {
    from_.load(first_pair_ + pair, lines);
    TROUPE_UNROLL
    for (int i = 0; i < kPairLines; ++i)
      _mm512_store_si512(kept_ + (pair * kPairLines + i) * 64, lines[i]);
  }

 private:
  CompactLines from_;
  std::int64_t first_pair_;
  std::byte* kept_;
};

/// The lines kept by KeepingLines.
class KeptLines {
 public:
  static constexpr bool kInRegisters = false;
  static constexpr std::int64_t kPairBytes = CompactLines::kPairBytes;

  /// packed: where they were unpacked from.
  KeptLines(const std::byte* kept, const std::byte* packed) : kept_(kept), packed_(packed) {}
  [[nodiscard]] TROUPE_INLINE const std::byte* at(std::int64_t pair) const {
    return packed_ + pair * kPairBytes;
  }
  [[nodiscard]] TROUPE_INLINE __m512i line(std::int64_t pair, int i) const {
    return kept_.line(pair, i);
  }

 private:
  PlainLines kept_;
  const std::byte* packed_;
};

class DotUnit {
 public:
  static constexpr int kMaxRows = 6;

  /// sums[r, n] = sum over num_pairs pairs of k in order, x: bf16 rows. `continues`: adds to the
  /// existing sums.
  template <class Lines>
  static void multiply(int num_rows, const std::uint16_t* x, std::int64_t x_stride, Lines& lines,
                       std::int64_t num_pairs, WeightPrefetcher prefetcher, bool continues,
                       float* sums) {
    with_row_count<kMaxRows>(
        num_rows, [&](auto rows) __attribute__((always_inline)) {
          multiply_rows<decltype(rows)::value>(x, x_stride, lines, num_pairs, prefetcher, continues,
                                               sums);
        });
  }

 private:
  template <int kRows, class Lines>
  static void multiply_rows(const std::uint16_t* x, std::int64_t x_stride, Lines& all_lines,
                            std::int64_t num_pairs, WeightPrefetcher prefetcher, bool continues,
                            float* sums) {
    Lines lines = all_lines;  // in registers
    __m512 acc[kRows][kPairLines];
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TROUPE_UNROLL
      for (int v = 0; v < kPairLines; ++v)
        acc[r][v] =
            continues ? _mm512_loadu_ps(sums + r * kPanelCols + v * kLanes) : _mm512_setzero_ps();
    }
    const auto x_pair = [&](int r, std::int64_t pair) __attribute__((always_inline)) {
      int bits;
      std::memcpy(&bits, x + r * x_stride + pair * 2, sizeof bits);
      return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
    };
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      // Either rows or lines are kept in registers: there is room for one of them.
      if constexpr (Lines::kInRegisters) {
        __m512i w[kPairLines];
        lines.load(pair, w);
        prefetcher.fetch(lines.at(pair), Lines::kPairBytes);
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m512bh row = x_pair(r, pair);
          TROUPE_UNROLL
          for (int v = 0; v < kPairLines; ++v)
            acc[r][v] = _mm512_dpbf16_ps(acc[r][v], row, reinterpret_cast<__m512bh>(w[v]));
        }
      } else {
        prefetcher.fetch(lines.at(pair), Lines::kPairBytes);
        __m512bh row[kRows];
        TROUPE_UNROLL
        for (int r = 0; r < kRows; ++r) row[r] = x_pair(r, pair);
        TROUPE_UNROLL
        for (int v = 0; v < kPairLines; ++v) {
          const auto w = reinterpret_cast<__m512bh>(lines.line(pair, v));
          TROUPE_UNROLL
          for (int r = 0; r < kRows; ++r) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], row[r], w);
        }
      }
    }
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TROUPE_UNROLL
      for (int v = 0; v < kPairLines; ++v)
        _mm512_storeu_ps(sums + r * kPanelCols + v * kLanes, acc[r][v]);
    }
    all_lines = lines;
  }
};

}  // namespace troupe::TROUPE_ISA
