#pragma once
// Lossless compression of bf16 weights to 12 bits. Neighbouring weights have similar exponents: a
// 4-bit code selects one of 15, and the few weights with other exponents are stored as exceptions.
// Products bound by memory bandwidth read a quarter less.
//
// A shard of a panel (matmul_layout.hpp) is a CompactShard and, for each pair of k, three lines of
// 64 bytes: signs and fractions of the pair's lines 0 and 1 (a byte each of a 16-bit word; those of
// line 1 with the bytes of the word exchanged), of its lines 2 and 3, and the codes of their
// exponents: word i has those of number i of each line, line 0 in its lowest bits. The exceptions
// of all shards follow the last panel.

#include "kernels/cpu/matmul_layout.hpp"

namespace troupe::TROUPE_ISA {

/// Precedes the lines.
struct alignas(64) CompactShard {
  /// Code 0 is exponent 0 (zeros and subnormals), code c is exponent base + c.
  std::int32_t exponent_base;
  std::int64_t exceptions;  ///< byte offset from this header
};
static_assert(sizeof(CompactShard) == kCompactHeaderBytes);

/// A weight whose exponent has no code. Those of a shard are in order, terminated by one with
/// `pair` kNoPair.
struct CompactException {
  std::uint32_t pair;
  std::uint16_t position;  ///< among the numbers of the pair's lines
  std::uint16_t bits;
};
inline constexpr std::uint32_t kNoPair = ~std::uint32_t{0};

#if defined(TROUPE_BF16_DOT)

inline constexpr int kPairLines = 4;  ///< of 16 columns each
static_assert(kPanelCols == kPairLines * kLanes);
inline constexpr int kExponentCodes = 16;
inline constexpr std::uint16_t kExponentBits = 0x7f80;

/// Exchanges the bytes of each 16-bit word.
TROUPE_INLINE __m512i exchange_halves(__m512i words) {
  const __m512i order =
      _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);  // of each 16 bytes
  return _mm512_shuffle_epi8(words, order);
}

/// Iterates over a shard's lines, pair after pair.
class CompactLines {
 public:
  static constexpr bool kInRegisters = true;
  static constexpr std::int64_t kPairBytes = kCompactPairBytes;

  explicit CompactLines(const std::byte* shard)
      : lines_(shard + kCompactHeaderBytes), exponent_bits_(_mm512_set1_epi16(kExponentBits)) {
    CompactShard header;
    std::memcpy(&header, shard, sizeof header);
    exception_ = reinterpret_cast<const CompactException*>(shard + header.exceptions);
    // The permutation uses 5 bits of a word: the lowest bit of the next code is one of them.
    alignas(64) std::uint16_t exponents[2 * kExponentCodes];
    for (int i = 0; i < 2 * kExponentCodes; ++i) {
      const int code = i % kExponentCodes;
      exponents[i] = static_cast<std::uint16_t>(code == 0 ? 0 : (header.exponent_base + code) << 7);
    }
    exponents_ = _mm512_load_si512(exponents);
  }

  /// The compressed lines of that pair in memory.
  [[nodiscard]] TROUPE_INLINE const std::byte* at(std::int64_t pair) const {
    return lines_ + pair * kPairBytes;
  }

  /// Unpacks the lines of a pair. Pre: called once per pair, in order.
  TROUPE_INLINE void load(std::int64_t pair, __m512i (&lines)[kPairLines]) {
    const __m512i first = _mm512_load_si512(at(pair));
    const __m512i second = _mm512_load_si512(at(pair) + 64);
    const __m512i codes = _mm512_load_si512(at(pair) + 128);
    lines[0] = join(codes, first);
    lines[1] = join(_mm512_srli_epi16(codes, 4), exchange_halves(first));
    lines[2] = join(_mm512_srli_epi16(codes, 8), second);
    lines[3] = join(_mm512_srli_epi16(codes, 12), exchange_halves(second));
    if (__builtin_expect(pair == exception_->pair, 0)) {
      // In memory in this path only.
      __m512i in_memory[] = {lines[0], lines[1], lines[2], lines[3]};
      exception_ = put(exception_, in_memory);
      TROUPE_UNROLL
      for (int i = 0; i < kPairLines; ++i) lines[i] = in_memory[i];
    }
  }

 private:
  TROUPE_INLINE __m512i join(__m512i codes, __m512i rest) const {
    constexpr int kFirstOrSecondButThird = 0xf4;  // a | (b & ~c)
    return _mm512_ternarylogic_epi32(_mm512_permutexvar_epi16(codes, exponents_), rest,
                                     exponent_bits_, kFirstOrSecondButThird);
  }
  /// Patches the exceptions of a pair into its lines. Returns the next pair's.
  __attribute__((noinline, cold)) static const CompactException* put(
      const CompactException* exception, __m512i (&lines)[kPairLines]) {
    const std::uint32_t pair = exception->pair;
    for (; exception->pair == pair; ++exception) {
      std::memcpy(reinterpret_cast<std::byte*>(lines) + exception->position * 2, &exception->bits,
                  sizeof exception->bits);
    }
    return exception;
  }

  const std::byte* lines_;
  const CompactException* exception_;
  __m512i exponents_;
  __m512i exponent_bits_;
};

#endif

}  // namespace troupe::TROUPE_ISA
