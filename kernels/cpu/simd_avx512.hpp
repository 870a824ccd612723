#pragma once
// The vector of simd.hpp with AVX-512.

#include <immintrin.h>

#include <cstdint>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_ISA {

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};
struct Split {
  Vec whole;
  Vec fraction;
};
inline constexpr std::int64_t kLanes = 16;

TROUPE_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
TROUPE_INLINE Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
TROUPE_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
TROUPE_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
/// Non-temporal store to aligned memory. Visible to other threads after
/// finish_stores_around_caches.
TROUPE_INLINE void non_temporal_store(float* p, Vec a) { _mm512_stream_ps(p, a.v); }
TROUPE_INLINE void finish_stores_around_caches() { _mm_sfence(); }
TROUPE_INLINE __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
/// 0 <= n < kLanes lanes from p; the others are zero.
TROUPE_INLINE Vec load_first(const float* p, std::int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
TROUPE_INLINE void store_first(float* p, Vec a, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
TROUPE_INLINE Vec load_bf16(const void* p) {
  const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
TROUPE_INLINE Vec load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
TROUPE_INLINE Vec load_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
/// 1/256 of the numbers.
TROUPE_INLINE Vec load_f8e4m3(const void* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7),
                                           _mm256_set1_epi16(static_cast<short>(0xbfff))))};
}
/// Pre: 1/256 of numbers of the type.
TROUPE_INLINE void store_f8e4m3(void* p, Vec a) {
  const __m256i halves = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i size = _mm256_and_si256(_mm256_srli_epi16(halves, 7), _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(halves, 8), _mm256_set1_epi16(0x80));
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtepi16_epi8(_mm256_or_si256(size, sign)));
}

/// The numbers of E2M1 in the lower, or the upper, nibbles of kLanes bytes.
TROUPE_INLINE Vec fp4_of_nibbles(__m512i nibbles) {
  const __m512 numbers = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                        -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return {_mm512_permutexvar_ps(nibbles, numbers)};  // which reads 4 bits
}
TROUPE_INLINE __m512i load_byte_lanes(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
TROUPE_INLINE Vec load_lower_fp4(const void* p) { return fp4_of_nibbles(load_byte_lanes(p)); }
TROUPE_INLINE Vec load_upper_fp4(const void* p) {
  return fp4_of_nibbles(_mm512_srli_epi32(load_byte_lanes(p), 4));
}
/// Powers of 2 by their exponents with the bias of f32; 0 is 0.
TROUPE_INLINE Vec load_powers_of_2(const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(load_byte_lanes(p), 23))};
}

/// kLanes adjacent pairs of bf16 (even, odd).
struct Bf16Pairs {
  __m512i v;
};
TROUPE_INLINE Bf16Pairs load_bf16_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
TROUPE_INLINE Vec even(Bf16Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
TROUPE_INLINE Vec odd(Bf16Pairs a) {
  return {
      _mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

TROUPE_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
TROUPE_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
/// a * b + c, rounded once (in plain C++ twice).
TROUPE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// b if either is NaN.
TROUPE_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
TROUPE_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
TROUPE_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
/// Rounds to the nearest integer, ties to even.
TROUPE_INLINE Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// a * 2^n; n is an integer in [-160, 160], or NaN where a is NaN.
TROUPE_INLINE Vec scale_by_power_of_2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
/// x = whole + fraction with 0 <= fraction <= 1; `whole` is not rounded, since scale_by_power_of_2
/// rounds down here.
TROUPE_INLINE Split split(Vec x) {
  return {x, {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}};
}
TROUPE_INLINE Mask less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TROUPE_INLINE Mask greater_equal(Vec a, Vec b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)};
}
TROUPE_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.m & b.m)}; }
/// a where the mask is set, else b.
TROUPE_INLINE Vec select(Mask mask, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(mask.m, b.v, a.v)};
}
TROUPE_INLINE Vec lane_numbers() {
  return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

/// The sum of the lanes: halves added recursively.
TROUPE_INLINE float sum_of_lanes(Vec a) {
  __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
TROUPE_INLINE float max_of_lanes(Vec a) { return _mm512_reduce_max_ps(a.v); }

}  // namespace troupe::TROUPE_ISA
