#pragma once
// The vector of simd.hpp with AVX2, FMA and F16C.

#include <immintrin.h>

#include <cstdint>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_ISA {

struct Vec {
  __m256 v;
};
struct Mask {
  __m256 m;
};
struct Split {
  Vec whole;
  Vec fraction;
};
inline constexpr std::int64_t kLanes = 8;

TROUPE_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
TROUPE_INLINE Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
TROUPE_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
TROUPE_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
/// Non-temporal store to aligned memory. Visible to other threads after
/// finish_stores_around_caches.
TROUPE_INLINE void non_temporal_store(float* p, Vec a) { _mm256_stream_ps(p, a.v); }
TROUPE_INLINE void finish_stores_around_caches() { _mm_sfence(); }
TROUPE_INLINE __m256i first_lanes(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/// 0 <= n < kLanes lanes from p; the others are zero.
TROUPE_INLINE Vec load_first(const float* p, std::int64_t n) {
  return {_mm256_maskload_ps(p, first_lanes(n))};
}
TROUPE_INLINE void store_first(float* p, Vec a, std::int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), a.v);
}
TROUPE_INLINE Vec load_bf16(const void* p) {
  const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
}
TROUPE_INLINE Vec load_f16(const void* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
TROUPE_INLINE Vec load_i8(const void* p) {
  const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}
/// 1/256 of the numbers.
TROUPE_INLINE Vec load_f8e4m3(const void* p) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  return {_mm256_cvtph_ps(
      _mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(static_cast<short>(0xbfff))))};
}
/// Pre: 1/256 of numbers of the type.
TROUPE_INLINE void store_f8e4m3(void* p, Vec a) {
  const __m128i halves = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m128i size = _mm_and_si128(_mm_srli_epi16(halves, 7), _mm_set1_epi16(0x7f));
  const __m128i sign = _mm_and_si128(_mm_srli_epi16(halves, 8), _mm_set1_epi16(0x80));
  const __m128i words = _mm_or_si128(size, sign);
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}

/// The numbers of E2M1 in the lower, or the upper, nibbles of kLanes bytes.
TROUPE_INLINE Vec fp4_of_nibbles(__m256i nibbles) {
  const __m256 sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i signs =
      _mm256_and_si256(_mm256_slli_epi32(nibbles, 28), _mm256_set1_epi32(INT32_MIN));
  const __m256 size = _mm256_permutevar8x32_ps(sizes, nibbles);  // which reads 3 bits
  return {_mm256_or_ps(size, _mm256_castsi256_ps(signs))};
}
TROUPE_INLINE __m256i load_byte_lanes(const void* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
TROUPE_INLINE Vec load_lower_fp4(const void* p) { return fp4_of_nibbles(load_byte_lanes(p)); }
TROUPE_INLINE Vec load_upper_fp4(const void* p) {
  return fp4_of_nibbles(_mm256_srli_epi32(load_byte_lanes(p), 4));
}
/// Powers of 2 by their exponents with the bias of f32; 0 is 0.
TROUPE_INLINE Vec load_powers_of_2(const void* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_byte_lanes(p), 23))};
}

/// kLanes adjacent pairs of bf16 (even, odd).
struct Bf16Pairs {
  __m256i v;
};
TROUPE_INLINE Bf16Pairs load_bf16_pairs(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
TROUPE_INLINE Vec even(Bf16Pairs a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a.v, 16))}; }
TROUPE_INLINE Vec odd(Bf16Pairs a) {
  return {
      _mm256_castsi256_ps(_mm256_and_si256(a.v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

TROUPE_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
/// a * b + c, rounded once (in plain C++ twice).
TROUPE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
/// b if either is NaN.
TROUPE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
TROUPE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
TROUPE_INLINE Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
/// Rounds to the nearest integer, ties to even.
TROUPE_INLINE Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// a * 2^n; n is an integer in [-160, 160], or NaN where a is NaN. In two steps, since 2^n itself
/// may not be a normal number.
TROUPE_INLINE Vec scale_by_power_of_2(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i exponent) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
  };
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, power(half)), power(_mm256_sub_epi32(whole, half)))};
}
/// x = whole + fraction with 0 <= fraction <= 1.
TROUPE_INLINE Split split(Vec x) {
  const Vec whole = {_mm256_round_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return {whole, x - whole};
}
TROUPE_INLINE Mask less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TROUPE_INLINE Mask greater_equal(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
TROUPE_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.m, b.m)}; }
/// a where the mask is set, else b.
TROUPE_INLINE Vec select(Mask mask, Vec a, Vec b) { return {_mm256_blendv_ps(b.v, a.v, mask.m)}; }
TROUPE_INLINE Vec lane_numbers() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }

/// The sum of the lanes: halves added recursively.
TROUPE_INLINE float sum_of_lanes(Vec a) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
TROUPE_INLINE float max_of_lanes(Vec a) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

}  // namespace troupe::TROUPE_ISA
