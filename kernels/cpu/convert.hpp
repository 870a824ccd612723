#pragma once
// Conversion of single numbers of each ElementType.

#include <cstdint>
#include <cstring>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_ISA {

TROUPE_INLINE std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
TROUPE_INLINE float bits_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TROUPE_INLINE float from_bf16(std::uint16_t half) { return bits_float(std::uint32_t{half} << 16); }
/// Round to nearest even; NaN stays NaN.
TROUPE_INLINE std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
TROUPE_INLINE float from_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}
/// Round to nearest even; overflow becomes infinity, NaN stays NaN.
TROUPE_INLINE std::uint16_t to_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude <
      0x38800000u) {  // Below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the bits.
    const std::uint32_t sum = float_bits(bits_float(magnitude) + 0.5f);
    return static_cast<std::uint16_t>(sign | (sum - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// 1/256 of the number, since its bits are those of an f16 with a shorter exponent.
TROUPE_INLINE float from_f8e4m3(std::uint8_t byte) {
  return from_f16(static_cast<std::uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7));
}

/// Element i of an array of the type, widened; for kF8E4M3 1/256 of it.
template <ElementType kType>
TROUPE_INLINE float load_element(const void* array, std::int64_t i) {
  if constexpr (kType == ElementType::kI8) {
    return static_cast<float>(static_cast<const std::int8_t*>(array)[i]);
  } else if constexpr (kType == ElementType::kF8E4M3) {
    return from_f8e4m3(static_cast<const std::uint8_t*>(array)[i]);
  } else if constexpr (kType == ElementType::kF32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(array) + 4 * i, 4);
    return value;
  } else {
    std::uint16_t half;
    std::memcpy(&half, static_cast<const char*>(array) + 2 * i, 2);
    return kType == ElementType::kBF16 ? from_bf16(half) : from_f16(half);
  }
}
/// Not for 8-bit types: see rope_and_write_kv.
template <ElementType kType>
TROUPE_INLINE void store_element(void* array, std::int64_t i, float value) {
  if constexpr (kType == ElementType::kF32) {
    std::memcpy(static_cast<char*>(array) + 4 * i, &value, 4);
  } else {
    const std::uint16_t half = kType == ElementType::kBF16 ? to_bf16(value) : to_f16(value);
    std::memcpy(static_cast<char*>(array) + 2 * i, &half, 2);
  }
}

}  // namespace troupe::TROUPE_ISA
