#include "runtime/multimodal/resize_passes.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of what its own header leaves undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

namespace troupe {
namespace {

/// Rows that are filtered together, as they have the same weights.
constexpr std::size_t kRowBlock = 4;

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
#define TROUPE_AVX512 __attribute__((target("avx512f,avx512bw")))
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

/// The bytes of one pixel of four rows: each row's sum is that of its two halves.
TROUPE_AVX2 __m128i four_pixels_avx2(const __m256i* sums, __m128i bits) {
  const __m256i first = _mm256_add_epi32(_mm256_permute2x128_si256(sums[0], sums[1], 0x20),
                                         _mm256_permute2x128_si256(sums[0], sums[1], 0x31));
  const __m256i last = _mm256_add_epi32(_mm256_permute2x128_si256(sums[2], sums[3], 0x20),
                                        _mm256_permute2x128_si256(sums[2], sums[3], 0x31));
  // Packing works in each half of 16 bytes: rows 0 2 are in the lower one, 1 3 in the upper one.
  const __m256i words =
      _mm256_packs_epi32(_mm256_sra_epi32(first, bits), _mm256_sra_epi32(last, bits));
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

template <bool is_split>
TROUPE_AVX2 void filter_rows_avx2(const std::array<const std::uint8_t*, kRowBlock>& rows,
                                  const AxisWeights& axis, const SplitWeights& split,
                                  std::uint8_t* out, std::size_t out_bytes) {
  // Of four pixels: red of the first two, green, blue, nothing; the same of the other two.
  const __m128i order = _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1);
  const __m256i pairs = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i half = _mm256_setr_epi32(1 << (axis.bits - 1), 1 << (axis.bits - 1),
                                         1 << (axis.bits - 1), 0, 0, 0, 0, 0);
  const __m128i bits = _mm_cvtsi32_si128(axis.bits);
  const std::size_t num_outputs = axis.begins.size();
  for (std::size_t x = 0; x < num_outputs; ++x) {
    const std::size_t begin = axis.begins[x] * 3;
    __m256i low_sums[kRowBlock] = {half, half, half, half};
    __m256i high_sums[kRowBlock] = {};
    for (std::size_t t = 0; t < axis.num_taps[x]; t += AxisWeights::kTapStep) {
      const auto weights = [&](const std::vector<std::int16_t>& of) TROUPE_AVX2 {
        const auto* four = reinterpret_cast<const __m128i*>(&of[x * axis.stride + t]);
        return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64(four)), pairs);
      };
      const __m256i low = weights(split.low);
      const __m256i high = is_split ? weights(split.high) : low;
      TROUPE_UNROLL
      for (std::size_t y = 0; y < kRowBlock; ++y) {
        const auto* from = reinterpret_cast<const __m128i*>(rows[y] + begin + t * 3);
        const __m256i values = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(_mm_loadu_si128(from), order));
        low_sums[y] = _mm256_add_epi32(low_sums[y], _mm256_madd_epi16(values, low));
        if constexpr (is_split)
          high_sums[y] = _mm256_add_epi32(high_sums[y], _mm256_madd_epi16(values, high));
      }
    }
    if constexpr (is_split) {
      TROUPE_UNROLL
      for (std::size_t y = 0; y < kRowBlock; ++y)
        low_sums[y] = _mm256_add_epi32(low_sums[y], _mm256_slli_epi32(high_sums[y], kLowBits));
    }
    std::array<std::uint8_t, 16> pixels;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels.data()), four_pixels_avx2(low_sums, bits));
    // The fourth byte is the next pixel's, which follows.
    const std::size_t num_bytes = x + 1 < num_outputs ? 4 : 3;
    constexpr std::array<std::size_t, kRowBlock> kPlaces = {0, 2, 1, 3};
    TROUPE_UNROLL
    for (std::size_t y = 0; y < kRowBlock; ++y)
      std::memcpy(out + y * out_bytes + x * 3, &pixels[kPlaces[y] * 4], num_bytes);
  }
}

/// filter_rows_avx2 with two rows in a register.
template <bool is_split>
TROUPE_AVX512 void filter_rows_avx512(const std::array<const std::uint8_t*, kRowBlock>& rows,
                                      const AxisWeights& axis, const SplitWeights& split,
                                      std::uint8_t* out, std::size_t out_bytes) {
  constexpr std::size_t kPairs = kRowBlock / 2;
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1));
  const __m512i pairs = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
  const __m512i half = _mm512_set1_epi32(1 << (axis.bits - 1));
  const __m512i zero = _mm512_setzero_si512();
  const __m128i bits = _mm_cvtsi32_si128(axis.bits);
  const std::size_t num_outputs = axis.begins.size();
  for (std::size_t x = 0; x < num_outputs; ++x) {
    const std::size_t begin = axis.begins[x] * 3;
    __m512i low_sums[kPairs] = {zero, zero};
    __m512i high_sums[kPairs] = {zero, zero};
    for (std::size_t t = 0; t < axis.num_taps[x]; t += AxisWeights::kTapStep) {
      const auto weights = [&](const std::vector<std::int16_t>& of) TROUPE_AVX512 {
        const auto* four = reinterpret_cast<const __m128i*>(&of[x * axis.stride + t]);
        return _mm512_permutexvar_epi32(pairs, _mm512_castsi128_si512(_mm_loadl_epi64(four)));
      };
      const __m512i low = weights(split.low);
      const __m512i high = is_split ? weights(split.high) : low;
      TROUPE_UNROLL
      for (std::size_t i = 0; i < kPairs; ++i) {
        const auto load = [&](const std::uint8_t* row) TROUPE_AVX512 {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + begin + t * 3));
        };
        const __m256i two = _mm256_inserti128_si256(_mm256_castsi128_si256(load(rows[2 * i])),
                                                    load(rows[2 * i + 1]), 1);
        const __m512i values = _mm512_cvtepu8_epi16(_mm256_shuffle_epi8(two, order));
        low_sums[i] = _mm512_add_epi32(low_sums[i], _mm512_madd_epi16(values, low));
        if constexpr (is_split)
          high_sums[i] = _mm512_add_epi32(high_sums[i], _mm512_madd_epi16(values, high));
      }
    }
    if constexpr (is_split) {
      TROUPE_UNROLL
      for (std::size_t i = 0; i < kPairs; ++i)
        low_sums[i] = _mm512_add_epi32(low_sums[i], _mm512_slli_epi32(high_sums[i], kLowBits));
    }
    __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(low_sums[0], low_sums[1], 0x88),
                                    _mm512_shuffle_i32x4(low_sums[0], low_sums[1], 0xDD));
    sums = _mm512_sra_epi32(_mm512_add_epi32(sums, half), bits);
    std::array<std::uint8_t, 16> pixels;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels.data()),
                     _mm512_cvtusepi32_epi8(_mm512_max_epi32(sums, zero)));
    // The fourth byte is the next pixel's, which follows.
    const std::size_t num_bytes = x + 1 < num_outputs ? 4 : 3;
    TROUPE_UNROLL
    for (std::size_t y = 0; y < kRowBlock; ++y)
      std::memcpy(out + y * out_bytes + x * 3, &pixels[y * 4], num_bytes);
  }
}

template <bool is_split>
TROUPE_AVX2 void filter_column_block_avx2(const std::uint8_t* first, std::size_t bytes_per_row,
                                          const std::int16_t* low, const std::int16_t* high,
                                          std::size_t num_taps, int bits, std::uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(1 << (bits - 1));
  const __m256i zero = _mm256_setzero_si256();
  __m256i low_sums[4] = {half, half, half, half};
  __m256i high_sums[4] = {zero, zero, zero, zero};
  for (std::size_t t = 0; t < num_taps; t += 2) {
    const std::uint8_t* row = first + t * bytes_per_row;
    // An odd last row is paired with itself: its second weight is 0.
    const std::uint8_t* next = t + 1 < num_taps ? row + bytes_per_row : row;
    const auto pair = [t](const std::int16_t* of) TROUPE_AVX2 {
      std::int32_t both;
      std::memcpy(&both, of + t, sizeof both);
      return _mm256_set1_epi32(both);
    };
    const __m256i low_pair = pair(low);
    const __m256i high_pair = is_split ? pair(high) : low_pair;
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next));
    // Works in each 16 bytes, as the packing below does.
    const __m256i begins = _mm256_unpacklo_epi8(a, b);
    const __m256i ends = _mm256_unpackhi_epi8(a, b);
    const __m256i values[4] = {_mm256_unpacklo_epi8(begins, zero),
                               _mm256_unpackhi_epi8(begins, zero), _mm256_unpacklo_epi8(ends, zero),
                               _mm256_unpackhi_epi8(ends, zero)};
    TROUPE_UNROLL
    for (std::size_t i = 0; i < 4; ++i) {
      low_sums[i] = _mm256_add_epi32(low_sums[i], _mm256_madd_epi16(values[i], low_pair));
      if constexpr (is_split)
        high_sums[i] = _mm256_add_epi32(high_sums[i], _mm256_madd_epi16(values[i], high_pair));
    }
  }
  const __m128i shift = _mm_cvtsi32_si128(bits);
  TROUPE_UNROLL
  for (std::size_t i = 0; i < 4; ++i) {
    if constexpr (is_split)
      low_sums[i] = _mm256_add_epi32(low_sums[i], _mm256_slli_epi32(high_sums[i], kLowBits));
    low_sums[i] = _mm256_sra_epi32(low_sums[i], shift);
  }
  const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(low_sums[0], low_sums[1]),
                                             _mm256_packs_epi32(low_sums[2], low_sums[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), packed);
}

/// The whole blocks of a row; returns where they end.
TROUPE_AVX2 std::size_t filter_columns_avx2(const std::uint8_t* first, std::size_t bytes_per_row,
                                            const AxisWeights& axis, const SplitWeights& split,
                                            std::size_t y, std::size_t row_bytes,
                                            std::uint8_t* out) {
  constexpr std::size_t kBlock = 32;
  auto* filter = &filter_column_block_avx2<false>;
  if (split.is_split) filter = &filter_column_block_avx2<true>;
  std::size_t at = 0;
  for (; at + kBlock <= row_bytes; at += kBlock)
    filter(first + at, bytes_per_row, &split.low[y * axis.stride], &split.high[y * axis.stride],
           axis.num_taps[y], axis.bits, out + at);
  return at;
}

template <bool is_split>
TROUPE_AVX512 void filter_column_block_avx512(const std::uint8_t* first, std::size_t bytes_per_row,
                                              const std::int16_t* low, const std::int16_t* high,
                                              std::size_t num_taps, int bits, std::uint8_t* out) {
  const __m512i half = _mm512_set1_epi32(1 << (bits - 1));
  const __m512i zero = _mm512_setzero_si512();
  __m512i low_sums[4] = {half, half, half, half};
  __m512i high_sums[4] = {zero, zero, zero, zero};
  for (std::size_t t = 0; t < num_taps; t += 2) {
    const std::uint8_t* row = first + t * bytes_per_row;
    // An odd last row is paired with itself: its second weight is 0.
    const std::uint8_t* next = t + 1 < num_taps ? row + bytes_per_row : row;
    const auto pair = [t](const std::int16_t* of) TROUPE_AVX512 {
      std::int32_t both;
      std::memcpy(&both, of + t, sizeof both);
      return _mm512_set1_epi32(both);
    };
    const __m512i low_pair = pair(low);
    const __m512i high_pair = is_split ? pair(high) : low_pair;
    const __m512i a = _mm512_loadu_si512(reinterpret_cast<const __m512i*>(row));
    const __m512i b = _mm512_loadu_si512(reinterpret_cast<const __m512i*>(next));
    // Works in each 16 bytes, as the packing below does.
    const __m512i begins = _mm512_unpacklo_epi8(a, b);
    const __m512i ends = _mm512_unpackhi_epi8(a, b);
    const __m512i values[4] = {_mm512_unpacklo_epi8(begins, zero),
                               _mm512_unpackhi_epi8(begins, zero), _mm512_unpacklo_epi8(ends, zero),
                               _mm512_unpackhi_epi8(ends, zero)};
    TROUPE_UNROLL
    for (std::size_t i = 0; i < 4; ++i) {
      low_sums[i] = _mm512_add_epi32(low_sums[i], _mm512_madd_epi16(values[i], low_pair));
      if constexpr (is_split)
        high_sums[i] = _mm512_add_epi32(high_sums[i], _mm512_madd_epi16(values[i], high_pair));
    }
  }
  const __m128i shift = _mm_cvtsi32_si128(bits);
  TROUPE_UNROLL
  for (std::size_t i = 0; i < 4; ++i) {
    if constexpr (is_split)
      low_sums[i] = _mm512_add_epi32(low_sums[i], _mm512_slli_epi32(high_sums[i], kLowBits));
    low_sums[i] = _mm512_sra_epi32(low_sums[i], shift);
  }
  const __m512i packed = _mm512_packus_epi16(_mm512_packs_epi32(low_sums[0], low_sums[1]),
                                             _mm512_packs_epi32(low_sums[2], low_sums[3]));
  _mm512_storeu_si512(reinterpret_cast<__m512i*>(out), packed);
}

/// The whole blocks of a row; returns where they end.
TROUPE_AVX512 std::size_t filter_columns_avx512(const std::uint8_t* first,
                                                std::size_t bytes_per_row, const AxisWeights& axis,
                                                const SplitWeights& split, std::size_t y,
                                                std::size_t row_bytes, std::uint8_t* out) {
  constexpr std::size_t kBlock = 64;
  auto* filter = &filter_column_block_avx512<false>;
  if (split.is_split) filter = &filter_column_block_avx512<true>;
  std::size_t at = 0;
  for (; at + kBlock <= row_bytes; at += kBlock)
    filter(first + at, bytes_per_row, &split.low[y * axis.stride], &split.high[y * axis.stride],
           axis.num_taps[y], axis.bits, out + at);
  return at;
}

/// Takes 48 bytes apart at a time; returns how many pixels that were.
TROUPE_AVX2 std::size_t split_channels_avx2(const std::uint8_t* rgb, std::size_t num_pixels,
                                            const std::array<std::uint8_t*, 3>& channels) {
  // orders[c][i]: which bytes of the i-th 16 are of channel c, at their places in the result.
  std::array<std::array<std::array<std::int8_t, 16>, 3>, 3> orders;
  for (std::size_t c = 0; c < 3; ++c) {
    for (auto& order : orders[c]) order.fill(-1);
    for (std::size_t pixel = 0; pixel < 16; ++pixel) {
      const std::size_t at = pixel * 3 + c;
      orders[c][at / 16][pixel] = static_cast<std::int8_t>(at % 16);
    }
  }
  const auto load = [](const void* from)
                        TROUPE_AVX2 { return _mm_loadu_si128(static_cast<const __m128i*>(from)); };
  std::size_t done = 0;
  for (; done + 16 <= num_pixels; done += 16) {
    const std::uint8_t* from = rgb + done * 3;
    const __m128i bytes[3] = {load(from), load(from + 16), load(from + 32)};
    TROUPE_UNROLL
    for (std::size_t c = 0; c < 3; ++c) {
      __m128i channel = _mm_shuffle_epi8(bytes[0], load(orders[c][0].data()));
      channel = _mm_or_si128(channel, _mm_shuffle_epi8(bytes[1], load(orders[c][1].data())));
      channel = _mm_or_si128(channel, _mm_shuffle_epi8(bytes[2], load(orders[c][2].data())));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(channels[c] + done), channel);
    }
  }
  return done;
}

#endif

/// The pass along rows.
class RowPass {
 public:
  RowPass(const AxisWeights& axis, ResizeCode code) : axis_(axis), code_(code) {
#if defined(__x86_64__)
    if (code != ResizeCode::kScalar) split_ = split_weights(axis);
#endif
  }

  /// Rows `begin` to `end`, the end excluded, to rows without gaps. Fast in multiples of kRowBlock.
  void filter(const PixelRows& in, std::size_t begin, std::size_t end, std::uint8_t* out) {
    const std::size_t out_bytes = axis_.begins.size() * 3;
#if defined(__x86_64__)
    if (code_ != ResizeCode::kScalar) {
      for (; begin < end; begin += kRowBlock, out += kRowBlock * out_bytes)
        filter_block(in, begin, std::min(end - begin, kRowBlock), out, out_bytes);
      return;
    }
#endif
    for (; begin < end; ++begin, out += out_bytes)
      filter_row(in.first + begin * in.bytes_per_row, axis_, out);
  }

 private:
#if defined(__x86_64__)
  void filter_block(const PixelRows& in, std::size_t begin, std::size_t count, std::uint8_t* out,
                    std::size_t out_bytes) {
    const std::size_t in_bytes = static_cast<std::size_t>(in.width) * 3;
    const std::size_t read_bytes = in_bytes + 3 * AxisWeights::kTapStep + kReadAhead;
    const std::uint8_t* last = in.first + (begin + count - 1) * in.bytes_per_row;
    std::array<const std::uint8_t*, kRowBlock> rows;
    for (std::size_t y = 0; y < kRowBlock; ++y)
      rows[y] = in.first + (begin + std::min(y, count - 1)) * in.bytes_per_row;
    if (static_cast<std::size_t>(in.end - last) < read_bytes) {  // no memory of ours follows
      copy_.resize(count * read_bytes);
      for (std::size_t y = 0; y < kRowBlock; ++y) {
        std::uint8_t* copied = &copy_[std::min(y, count - 1) * read_bytes];
        std::memcpy(copied, rows[y], in_bytes);
        rows[y] = copied;
      }
    }
    std::uint8_t* to = out;
    if (count < kRowBlock) {
      filtered_.resize(kRowBlock * out_bytes);
      to = filtered_.data();
    }
    const bool is_avx512 = code_ == ResizeCode::kAvx512;
    auto* filter = is_avx512 ? &filter_rows_avx512<false> : &filter_rows_avx2<false>;
    if (split_.is_split) filter = is_avx512 ? &filter_rows_avx512<true> : &filter_rows_avx2<true>;
    filter(rows, axis_, split_, to, out_bytes);
    if (to != out) std::memcpy(out, to, count * out_bytes);
  }

  SplitWeights split_;
  std::vector<std::uint8_t> copy_;
  std::vector<std::uint8_t> filtered_;
#endif
  const AxisWeights& axis_;
  ResizeCode code_;
};

/// The pass along columns.
class ColumnPass {
 public:
  ColumnPass(const AxisWeights& axis, ResizeCode code) : axis_(axis), code_(code) {
#if defined(__x86_64__)
    if (code != ResizeCode::kScalar) split_ = split_weights(axis);
#endif
  }

  /// Output row y, of row_bytes bytes. `first` is the first row that it needs.
  void filter(const std::uint8_t* first, std::size_t bytes_per_row, std::size_t y,
              std::size_t row_bytes, std::uint8_t* out) const {
    std::size_t done = 0;
#if defined(__x86_64__)
    if (code_ == ResizeCode::kAvx2)
      done = filter_columns_avx2(first, bytes_per_row, axis_, split_, y, row_bytes, out);
    if (code_ == ResizeCode::kAvx512)
      done = filter_columns_avx512(first, bytes_per_row, axis_, split_, y, row_bytes, out);
#endif
    filter_column_bytes(first, bytes_per_row, &axis_.weights[y * axis_.stride], axis_.num_taps[y],
                        axis_.bits, done, row_bytes, out);
  }

 private:
#if defined(__x86_64__)
  SplitWeights split_;
#endif
  const AxisWeights& axis_;
  ResizeCode code_;
};

void filter_columns_only(const PixelRows& in, const AxisWeights& axis, ResizeCode code,
                         const RowSink& sink) {
  const ColumnPass columns(axis, code);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(in.width) * 3);
  for (std::size_t y = 0; y < axis.begins.size(); ++y) {
    columns.filter(in.first + axis.begins[y] * in.bytes_per_row, in.bytes_per_row, y, row.size(),
                   row.data());
    sink(row.data());
  }
}

void filter_rows_only(const PixelRows& in, const AxisWeights& axis, ResizeCode code,
                      const RowSink& sink) {
  RowPass rows(axis, code);
  const std::size_t row_bytes = axis.begins.size() * 3;
  const auto height = static_cast<std::size_t>(in.height);
  std::vector<std::uint8_t> block(kRowBlock * row_bytes);
  for (std::size_t y = 0; y < height; y += kRowBlock) {
    const std::size_t count = std::min(kRowBlock, height - y);
    rows.filter(in, y, y + count, block.data());
    for (std::size_t i = 0; i < count; ++i) sink(&block[i * row_bytes]);
  }
}

/// Columns, then rows, in blocks of rows that stay in the CPU's cache.
void filter_columns_first(const PixelRows& in, const AxisWeights& x_axis, const AxisWeights& y_axis,
                          ResizeCode code, const RowSink& sink) {
  const ColumnPass columns(y_axis, code);
  RowPass rows(x_axis, code);
  const std::size_t in_bytes = static_cast<std::size_t>(in.width) * 3;
  const std::size_t row_bytes = x_axis.begins.size() * 3;
  const std::size_t height = y_axis.begins.size();
  std::vector<std::uint8_t> block(kRowBlock * in_bytes);
  std::vector<std::uint8_t> out(kRowBlock * row_bytes);
  for (std::size_t y = 0; y < height; y += kRowBlock) {
    const std::size_t count = std::min(kRowBlock, height - y);
    for (std::size_t i = 0; i < count; ++i)
      columns.filter(in.first + y_axis.begins[y + i] * in.bytes_per_row, in.bytes_per_row, y + i,
                     in_bytes, &block[i * in_bytes]);
    rows.filter({block.data(), block.data() + block.size(), in_bytes, in.width,
                 static_cast<std::int32_t>(count)},
                0, count, out.data());
    for (std::size_t i = 0; i < count; ++i) sink(&out[i * row_bytes]);
  }
}

/// Rows, then columns. Of the filtered rows only those are kept that next outputs need, which stay
/// in the CPU's cache.
void filter_rows_first(const PixelRows& in, const AxisWeights& x_axis, const AxisWeights& y_axis,
                       ResizeCode code, const RowSink& sink) {
  RowPass rows(x_axis, code);
  const ColumnPass columns(y_axis, code);
  const std::size_t row_bytes = x_axis.begins.size() * 3;
  const auto height = static_cast<std::size_t>(in.height);
  const std::size_t capacity =
      std::min(height, 2 * std::ranges::max(y_axis.num_taps) + 4 * kRowBlock);
  std::vector<std::uint8_t> window(capacity * row_bytes);
  std::vector<std::uint8_t> out(row_bytes);
  std::size_t first = 0;     // which row is the window's first
  std::size_t filtered = 0;  // the rows before this one are filtered
  const auto row_at = [&](std::size_t y) { return window.data() + (y - first) * row_bytes; };
  for (std::size_t i = 0; i < y_axis.begins.size(); ++i) {
    const std::size_t begin = y_axis.begins[i];
    const std::size_t end = begin + y_axis.num_taps[i];
    const auto block_end = [&] {
      return std::min(height, filtered + (end - filtered + kRowBlock - 1) / kRowBlock * kRowBlock);
    };
    if (filtered < end) {
      if (block_end() - first > capacity) {
        if (filtered > begin)
          std::memmove(window.data(), row_at(begin), (filtered - begin) * row_bytes);
        first = begin;
        filtered = std::max(filtered, begin);
      }
      rows.filter(in, filtered, block_end(), row_at(filtered));
      filtered = block_end();
    }
    columns.filter(row_at(begin), row_bytes, i, row_bytes, out.data());
    sink(out.data());
  }
}

}  // namespace

std::span<const ResizeCode> resize_codes() {
  static constexpr ResizeCode kCodes[] = {ResizeCode::kScalar, ResizeCode::kAvx2,
                                          ResizeCode::kAvx512};
  std::size_t count = 1;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) count = 2;
  if (count == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
    count = 3;
#endif
  return std::span(kCodes).first(count);
}

void filter_image(const PixelRows& in, const ResizePasses& passes, ResizeCode code,
                  const RowSink& sink) {
  if (passes.x && passes.y) {
    auto* filter = passes.columns_first ? &filter_columns_first : &filter_rows_first;
    filter(in, *passes.x, *passes.y, code, sink);
  } else if (passes.x) {
    filter_rows_only(in, *passes.x, code, sink);
  } else if (passes.y) {
    filter_columns_only(in, *passes.y, code, sink);
  } else {
    for (std::size_t y = 0; y < static_cast<std::size_t>(in.height); ++y)
      sink(in.first + y * in.bytes_per_row);
  }
}

void split_channels(const std::uint8_t* rgb, std::size_t num_pixels,
                    const std::array<std::uint8_t*, 3>& channels,
                    [[maybe_unused]] ResizeCode code) {
  std::size_t i = 0;
#if defined(__x86_64__)
  if (code != ResizeCode::kScalar) i = split_channels_avx2(rgb, num_pixels, channels);
#endif
  for (; i < num_pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) channels[c][i] = rgb[i * 3 + c];
  }
}

}  // namespace troupe
