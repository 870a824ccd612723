#include "runtime/multimodal/resize_passes.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe {
namespace {

Image sized_image(std::int32_t width, std::int32_t height) {
  Image image{width, height, {}};
  image.rgb.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  return image;
}

/// Sums wrap around: positive weights may exceed 2^31 before negative ones bring them back.
using WrappingSum = std::uint32_t;

WrappingSum product(std::int32_t weight, std::uint8_t value) {
  return static_cast<WrappingSum>(weight) * value;
}

std::uint8_t to_byte(WrappingSum sum, int bits) {
  return static_cast<std::uint8_t>(std::clamp(static_cast<std::int32_t>(sum) >> bits, 0, 255));
}

void filter_row(const std::uint8_t* row, const AxisWeights& axis, std::uint8_t* out) {
  const WrappingSum half = WrappingSum{1} << (axis.bits - 1);
  for (std::size_t x = 0; x < axis.begins.size(); ++x, out += 3) {
    const std::int32_t* weights = &axis.weights[x * axis.stride];
    const std::uint8_t* from = row + axis.begins[x] * 3;
    std::array<WrappingSum, 3> sums = {half, half, half};
    for (std::size_t t = 0; t < axis.num_taps[x]; ++t, from += 3) {
      for (std::size_t c = 0; c < 3; ++c) sums[c] += product(weights[t], from[c]);
    }
    for (std::size_t c = 0; c < 3; ++c) out[c] = to_byte(sums[c], axis.bits);
  }
}

/// out[i] for `begin` <= i < `end`, of the rows from `first` on.
void filter_column_bytes(const std::uint8_t* first, std::size_t bytes_per_row,
                         const std::int32_t* weights, std::size_t num_taps, int bits,
                         std::size_t begin, std::size_t end, std::uint8_t* out) {
  constexpr std::size_t kBlock = 64;
  std::array<WrappingSum, kBlock> sums;
  for (; begin < end; begin += kBlock) {
    const std::size_t count = std::min(kBlock, end - begin);
    sums.fill(WrappingSum{1} << (bits - 1));
    for (std::size_t t = 0; t < num_taps; ++t) {
      const std::uint8_t* row = first + t * bytes_per_row + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] += product(weights[t], row[i]);
    }
    for (std::size_t i = 0; i < count; ++i) out[begin + i] = to_byte(sums[i], bits);
  }
}

#if defined(__x86_64__)

#define TROUPE_AVX2 __attribute__((target("avx2")))
// Before loops over arrays that are to be registers.
#if defined(__clang__)
#define TROUPE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TROUPE_UNROLL _Pragma("GCC unroll 8")
#endif

/// Multiplying pairs of 16 bits (vpmaddwd) is the fast way to add up. Weights of more bits are two
/// numbers: weight = (high << kLowBits) + low.
constexpr int kLowBits = 11;
constexpr std::int32_t kLowMask = (1 << kLowBits) - 1;

struct SplitWeights {
  bool is_split = false;
  std::vector<std::int16_t> low;  ///< all of the weight if it is not split
  std::vector<std::int16_t> high;
};

SplitWeights split_weights(const AxisWeights& axis) {
  SplitWeights split;
  split.is_split = std::ranges::any_of(axis.weights, [](std::int32_t weight) {
    return weight != static_cast<std::int16_t>(weight);
  });
  split.low.reserve(axis.weights.size());
  for (const std::int32_t weight : axis.weights)
    split.low.push_back(static_cast<std::int16_t>(split.is_split ? weight & kLowMask : weight));
  split.high.resize(axis.weights.size());
  for (std::size_t i = 0; split.is_split && i < axis.weights.size(); ++i)
    split.high[i] = static_cast<std::int16_t>(axis.weights[i] >> kLowBits);
  return split;
}

/// Reads up to this much behind the taps of an output.
constexpr std::size_t kReadAhead = 16;

/// Rows that are filtered together, as they have the same weights.
constexpr std::size_t kRowBlock = 4;

template <bool is_split, std::size_t num_rows>
TROUPE_AVX2 void filter_rows_avx2(const std::array<const std::uint8_t*, num_rows>& rows,
                                  const AxisWeights& axis, const SplitWeights& split,
                                  std::uint8_t* out, std::size_t out_bytes) {
  // Of four pixels: red of the first two, green, blue, nothing; the same of the other two.
  const __m128i order = _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1);
  const __m256i pairs = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m128i half = _mm_set1_epi32(1 << (axis.bits - 1));
  const __m128i bits = _mm_cvtsi32_si128(axis.bits);
  const std::size_t num_outputs = axis.begins.size();
  for (std::size_t x = 0; x < num_outputs; ++x) {
    const std::size_t begin = axis.begins[x] * 3;
    __m256i low_sums[num_rows] = {};
    __m256i high_sums[num_rows] = {};
    for (std::size_t t = 0; t < axis.num_taps[x]; t += AxisWeights::kTapStep) {
      const auto weights = [&](const std::vector<std::int16_t>& of) TROUPE_AVX2 {
        const auto* four = reinterpret_cast<const __m128i*>(&of[x * axis.stride + t]);
        return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64(four)), pairs);
      };
      const __m256i low = weights(split.low);
      const __m256i high = is_split ? weights(split.high) : low;
      TROUPE_UNROLL
      for (std::size_t y = 0; y < num_rows; ++y) {
        const auto* from = reinterpret_cast<const __m128i*>(rows[y] + begin + t * 3);
        const __m256i values = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(_mm_loadu_si128(from), order));
        low_sums[y] = _mm256_add_epi32(low_sums[y], _mm256_madd_epi16(values, low));
        if constexpr (is_split)
          high_sums[y] = _mm256_add_epi32(high_sums[y], _mm256_madd_epi16(values, high));
      }
    }
    TROUPE_UNROLL
    for (std::size_t y = 0; y < num_rows; ++y) {
      __m256i both = low_sums[y];
      if constexpr (is_split)
        both = _mm256_add_epi32(both, _mm256_slli_epi32(high_sums[y], kLowBits));
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      sum = _mm_sra_epi32(_mm_add_epi32(sum, half), bits);
      sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
      const int pixel = _mm_cvtsi128_si32(sum);
      // The fourth byte is the next pixel's, which follows.
      std::memcpy(out + y * out_bytes + x * 3, &pixel, x + 1 < num_outputs ? 4 : 3);
    }
  }
}

template <std::size_t num_rows>
void filter_rows_avx2(const std::array<const std::uint8_t*, num_rows>& rows,
                      const AxisWeights& axis, const SplitWeights& split, std::uint8_t* out,
                      std::size_t out_bytes) {
  if (split.is_split)
    filter_rows_avx2<true, num_rows>(rows, axis, split, out, out_bytes);
  else
    filter_rows_avx2<false, num_rows>(rows, axis, split, out, out_bytes);
}

/// Pre: the CPU has AVX2.
void filter_all_rows_avx2(const PixelRows& in, const AxisWeights& axis, std::uint8_t* out) {
  const SplitWeights split = split_weights(axis);
  const std::size_t out_bytes = axis.begins.size() * 3;
  const std::size_t in_bytes = static_cast<std::size_t>(in.width) * 3;
  const std::size_t read_bytes = in_bytes + 3 * AxisWeights::kTapStep + kReadAhead;
  const auto height = static_cast<std::size_t>(in.height);
  const auto row_at = [&](std::size_t y) { return in.first + y * in.bytes_per_row; };
  const auto may_read = [&](std::size_t y) {
    return static_cast<std::size_t>(in.end - row_at(y)) >= read_bytes;
  };
  std::size_t y = 0;
  for (; y + kRowBlock <= height && may_read(y + kRowBlock - 1); y += kRowBlock)
    filter_rows_avx2<kRowBlock>({row_at(y), row_at(y + 1), row_at(y + 2), row_at(y + 3)}, axis,
                                split, out + y * out_bytes, out_bytes);
  std::vector<std::uint8_t> copy(read_bytes);  // of rows behind which no memory is ours
  for (; y < height; ++y) {
    std::memcpy(copy.data(), row_at(y), in_bytes);
    filter_rows_avx2<1>({copy.data()}, axis, split, out + y * out_bytes, out_bytes);
  }
}

template <bool is_split>
TROUPE_AVX2 void filter_column_block_avx2(const std::uint8_t* first, std::size_t bytes_per_row,
                                          const std::int16_t* low, const std::int16_t* high,
                                          std::size_t num_taps, int bits, std::uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(1 << (bits - 1));
  __m256i low_sums[4] = {half, half, half, half};
  __m256i high_sums[4] = {};
  for (std::size_t t = 0; t < num_taps; t += 2) {
    const std::uint8_t* row = first + t * bytes_per_row;
    // An odd last row is paired with itself: its second weight is 0.
    const std::uint8_t* next = t + 1 < num_taps ? row + bytes_per_row : row;
    const auto pair = [t](const std::int16_t* of) TROUPE_AVX2 {
      int both = 0;
      std::memcpy(&both, of + t, sizeof both);
      return _mm256_set1_epi32(both);
    };
    const __m256i low_pair = pair(low);
    const __m256i high_pair = pair(high);
    TROUPE_UNROLL
    for (std::size_t half_block = 0; half_block < 2; ++half_block) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + half_block * 16));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(next + half_block * 16));
      const __m256i values0 = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
      const __m256i values1 = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
      const std::size_t at = half_block * 2;
      low_sums[at] = _mm256_add_epi32(low_sums[at], _mm256_madd_epi16(values0, low_pair));
      low_sums[at + 1] = _mm256_add_epi32(low_sums[at + 1], _mm256_madd_epi16(values1, low_pair));
      if constexpr (is_split) {
        high_sums[at] = _mm256_add_epi32(high_sums[at], _mm256_madd_epi16(values0, high_pair));
        high_sums[at + 1] =
            _mm256_add_epi32(high_sums[at + 1], _mm256_madd_epi16(values1, high_pair));
      }
    }
  }
  const __m128i shift = _mm_cvtsi32_si128(bits);
  TROUPE_UNROLL
  for (std::size_t i = 0; i < 4; ++i) {
    if constexpr (is_split)
      low_sums[i] = _mm256_add_epi32(low_sums[i], _mm256_slli_epi32(high_sums[i], kLowBits));
    low_sums[i] = _mm256_sra_epi32(low_sums[i], shift);
  }
  // Packing works in each half of 16 bytes: the groups of four come out as 0 2 4 6 1 3 5 7.
  const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(low_sums[0], low_sums[1]),
                                             _mm256_packs_epi32(low_sums[2], low_sums[3]));
  const __m256i groups = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(packed, groups));
}

constexpr std::size_t kColumnBlock = 32;

/// The whole blocks of a row; returns where they end.
TROUPE_AVX2 std::size_t filter_columns_avx2(const std::uint8_t* first, std::size_t bytes_per_row,
                                            const AxisWeights& axis, const SplitWeights& split,
                                            std::size_t y, std::size_t row_bytes,
                                            std::uint8_t* out) {
  std::size_t at = 0;
  for (; at + kColumnBlock <= row_bytes; at += kColumnBlock) {
    auto* filter = &filter_column_block_avx2<false>;
    if (split.is_split) filter = &filter_column_block_avx2<true>;
    filter(first + at, bytes_per_row, &split.low[y * axis.stride], &split.high[y * axis.stride],
           axis.num_taps[y], axis.bits, out + at);
  }
  return at;
}

#endif

}  // namespace

ResizeCode best_resize_code() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return ResizeCode::kAvx2;
#endif
  return ResizeCode::kScalar;
}

Image filter_rows(const PixelRows& in, std::int32_t width, const AxisWeights& axis,
                  [[maybe_unused]] ResizeCode code) {
  Image out = sized_image(width, in.height);
#if defined(__x86_64__)
  if (code == ResizeCode::kAvx2) {
    filter_all_rows_avx2(in, axis, out.rgb.data());
    return out;
  }
#endif
  for (std::size_t y = 0; y < static_cast<std::size_t>(in.height); ++y)
    filter_row(in.first + y * in.bytes_per_row, axis,
               &out.rgb[y * static_cast<std::size_t>(width) * 3]);
  return out;
}

Image filter_columns(const PixelRows& in, std::int32_t height, const AxisWeights& axis,
                     [[maybe_unused]] ResizeCode code) {
  Image out = sized_image(in.width, height);
  const std::size_t row_bytes = static_cast<std::size_t>(in.width) * 3;
#if defined(__x86_64__)
  const SplitWeights split = code == ResizeCode::kAvx2 ? split_weights(axis) : SplitWeights{};
#endif
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    const std::uint8_t* first = in.first + axis.begins[y] * in.bytes_per_row;
    std::uint8_t* to = &out.rgb[y * row_bytes];
    std::size_t done = 0;
#if defined(__x86_64__)
    if (code == ResizeCode::kAvx2)
      done = filter_columns_avx2(first, in.bytes_per_row, axis, split, y, row_bytes, to);
#endif
    filter_column_bytes(first, in.bytes_per_row, &axis.weights[y * axis.stride], axis.num_taps[y],
                        axis.bits, done, row_bytes, to);
  }
  return out;
}

}  // namespace troupe
