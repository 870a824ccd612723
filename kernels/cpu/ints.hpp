#pragma once
// One vector of 32-bit integers, and the inner products of bytes that accumulate into it: exact, so
// that every instruction set computes the same sums.

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// 4-bit numbers are stored with this bias; products use them as stored, and 8 times the sum of the
/// other factor is subtracted.
inline constexpr std::int32_t kInt4Bias = 8;

#if defined(__AVX512F__)

struct Ints {
  __m512i v;
};
/// 8-bit weights are stored with this bias: VNNI multiplies unsigned by signed.
inline constexpr std::int32_t kInt8Bias = 128;

TROUPE_INLINE Ints broadcast_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
TROUPE_INLINE Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
TROUPE_INLINE Ints low_nibbles(Ints a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0x0f))}; }
TROUPE_INLINE Ints high_nibbles(Ints a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi8(0x0f))};
}
/// sum + the four products of stored weights and x in each lane.
TROUPE_INLINE Ints dot_int8(Ints sum, Ints weights, Ints x) {
  return {_mm512_dpbusd_epi32(sum.v, weights.v, x.v)};
}
TROUPE_INLINE Ints dot_int4(Ints sum, Ints weights, Ints x) { return dot_int8(sum, weights, x); }
TROUPE_INLINE Vec to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
/// kLanes integers in [-127, 127] as bytes.
TROUPE_INLINE void store_int8(std::int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

#elif defined(__AVX2__)

struct Ints {
  __m256i v;
};
#if defined(__AVXVNNI__)
inline constexpr std::int32_t kInt8Bias = 128;
#else
inline constexpr std::int32_t kInt8Bias = 0;
#endif

TROUPE_INLINE Ints broadcast_int(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
TROUPE_INLINE Ints load_ints(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
TROUPE_INLINE Ints low_nibbles(Ints a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(0x0f))}; }
TROUPE_INLINE Ints high_nibbles(Ints a) {
  return {_mm256_and_si256(_mm256_srli_epi32(a.v, 4), _mm256_set1_epi8(0x0f))};
}
#if defined(__AVXVNNI__)
TROUPE_INLINE Ints dot_int8(Ints sum, Ints weights, Ints x) {
  return {_mm256_dpbusd_avx_epi32(sum.v, weights.v, x.v)};
}
TROUPE_INLINE Ints dot_int4(Ints sum, Ints weights, Ints x) { return dot_int8(sum, weights, x); }
#else
/// Pairs of products do not overflow 16 bits: at most 2 * 15 * 127.
TROUPE_INLINE Ints dot_int4(Ints sum, Ints weights, Ints x) {
  const __m256i pairs = _mm256_maddubs_epi16(weights.v, x.v);
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
/// Computed as |w| times x with the sign of w: at most 2 * 128 * 127.
TROUPE_INLINE Ints dot_int8(Ints sum, Ints weights, Ints x) {
  return dot_int4(sum, {_mm256_abs_epi8(weights.v)}, {_mm256_sign_epi8(x.v, weights.v)});
}
#endif
TROUPE_INLINE Vec to_float(Ints a) { return {_mm256_cvtepi32_ps(a.v)}; }
TROUPE_INLINE void store_int8(std::int8_t* p, Vec a) {
  const __m256i words = _mm256_cvtps_epi32(a.v);
  const __m128i halves =
      _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}

#else

struct Ints {
  std::int32_t v;
};
inline constexpr std::int32_t kInt8Bias = 0;

TROUPE_INLINE Ints broadcast_int(std::int32_t x) { return {x}; }
TROUPE_INLINE Ints load_ints(const void* p) {
  Ints a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
TROUPE_INLINE Ints low_nibbles(Ints a) { return {a.v & 0x0f0f0f0f}; }
TROUPE_INLINE Ints high_nibbles(Ints a) { return {(a.v >> 4) & 0x0f0f0f0f}; }
TROUPE_INLINE Ints dot_int8(Ints sum, Ints weights, Ints x) {
  std::int8_t w[4];
  std::int8_t factors[4];
  std::memcpy(w, &weights.v, sizeof w);
  std::memcpy(factors, &x.v, sizeof factors);
  for (int i = 0; i < 4; ++i) sum.v += w[i] * factors[i];
  return sum;
}
TROUPE_INLINE Ints dot_int4(Ints sum, Ints weights, Ints x) { return dot_int8(sum, weights, x); }
TROUPE_INLINE Vec to_float(Ints a) { return {static_cast<float>(a.v)}; }
TROUPE_INLINE void store_int8(std::int8_t* p, Vec a) { *p = static_cast<std::int8_t>(a.v); }

#endif

}  // namespace troupe::TROUPE_ISA
