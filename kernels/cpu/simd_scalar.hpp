#pragma once
// The vector of simd.hpp in plain C++ with one lane: the reference for the others.

#include <cstdint>

#include "kernels/cpu/convert.hpp"

namespace troupe::TROUPE_ISA {

struct Vec {
  float v;
};
struct Mask {
  bool m;
};
struct Split {
  Vec whole;
  Vec fraction;
};
inline constexpr std::int64_t kLanes = 1;

TROUPE_INLINE Vec zero() { return {0.0f}; }
TROUPE_INLINE Vec broadcast(float x) { return {x}; }
TROUPE_INLINE Vec load(const float* p) { return {*p}; }
TROUPE_INLINE void store(float* p, Vec a) { *p = a.v; }
TROUPE_INLINE void non_temporal_store(float* p, Vec a) { store(p, a); }
TROUPE_INLINE void finish_stores_around_caches() {}
/// 0 <= n < kLanes lanes from p; the others are zero.
TROUPE_INLINE Vec load_first(const float*, std::int64_t) { return zero(); }
TROUPE_INLINE void store_first(float*, Vec, std::int64_t) {}
TROUPE_INLINE Vec load_bf16(const void* p) { return {load_element<ElementType::kBF16>(p, 0)}; }
TROUPE_INLINE Vec load_f16(const void* p) { return {load_element<ElementType::kF16>(p, 0)}; }
TROUPE_INLINE Vec load_i8(const void* p) { return {load_element<ElementType::kI8>(p, 0)}; }
/// 1/256 of the numbers.
TROUPE_INLINE Vec load_f8e4m3(const void* p) { return {load_element<ElementType::kF8E4M3>(p, 0)}; }
/// Pre: 1/256 of numbers of the type.
TROUPE_INLINE void store_f8e4m3(void* p, Vec a) {
  const std::uint32_t half = to_f16(a.v);
  *static_cast<std::uint8_t*>(p) =
      static_cast<std::uint8_t>(((half >> 7) & 0x7fu) | ((half >> 8) & 0x80u));
}

/// The number of E2M1 in the lower, or the upper, nibble of a byte.
TROUPE_INLINE Vec fp4_of_nibble(int nibble) {
  constexpr float kSizes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float size = kSizes[nibble & 7];
  return {(nibble & 8) != 0 ? -size : size};
}
TROUPE_INLINE Vec load_lower_fp4(const void* p) {
  return fp4_of_nibble(*static_cast<const std::uint8_t*>(p) & 15);
}
TROUPE_INLINE Vec load_upper_fp4(const void* p) {
  return fp4_of_nibble(*static_cast<const std::uint8_t*>(p) >> 4);
}
/// A power of 2 by its exponent with the bias of f32; 0 is 0.
TROUPE_INLINE Vec load_powers_of_2(const void* p) {
  return {bits_float(std::uint32_t{*static_cast<const std::uint8_t*>(p)} << 23)};
}

/// kLanes adjacent pairs of bf16 (even, odd).
struct Bf16Pairs {
  const char* pair;
};
TROUPE_INLINE Bf16Pairs load_bf16_pairs(const void* p) { return {static_cast<const char*>(p)}; }
TROUPE_INLINE Vec even(Bf16Pairs a) { return load_bf16(a.pair); }
TROUPE_INLINE Vec odd(Bf16Pairs a) { return load_bf16(a.pair + 2); }

TROUPE_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
TROUPE_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
TROUPE_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
TROUPE_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
/// a * b + c, rounded twice: a fused multiply-add in software would be far slower.
TROUPE_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
/// b if either is NaN.
TROUPE_INLINE Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
TROUPE_INLINE Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
TROUPE_INLINE Vec abs(Vec a) { return {__builtin_fabsf(a.v)}; }
/// Rounds to the nearest integer, ties to even.
TROUPE_INLINE Vec round(Vec a) { return {__builtin_rintf(a.v)}; }
/// a * 2^n; n is an integer in [-160, 160], or NaN where a is NaN.
TROUPE_INLINE Vec scale_by_power_of_2(Vec a, Vec n) {
  return {n.v == n.v ? __builtin_ldexpf(a.v, static_cast<int>(n.v)) : a.v};
}
/// x = whole + fraction with 0 <= fraction <= 1.
TROUPE_INLINE Split split(Vec x) {
  const Vec whole = {__builtin_floorf(x.v)};
  return {whole, x - whole};
}
TROUPE_INLINE Mask less(Vec a, Vec b) { return {a.v < b.v}; }
TROUPE_INLINE Mask greater_equal(Vec a, Vec b) { return {a.v >= b.v}; }
TROUPE_INLINE Mask operator&(Mask a, Mask b) { return {a.m && b.m}; }
/// a where the mask is set, else b.
TROUPE_INLINE Vec select(Mask mask, Vec a, Vec b) { return mask.m ? a : b; }
TROUPE_INLINE Vec lane_numbers() { return {0.0f}; }

TROUPE_INLINE float sum_of_lanes(Vec a) { return a.v; }
TROUPE_INLINE float max_of_lanes(Vec a) { return a.v; }

}  // namespace troupe::TROUPE_ISA
