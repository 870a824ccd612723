#pragma once
// 16-bit floating point numbers as checkpoints hold them.

#include <bit>
#include <cmath>
#include <cstdint>

namespace troupe {

[[nodiscard]] inline float widen_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The nearest number that bfloat16 has, ties to even; NaN stays NaN.
[[nodiscard]] inline std::uint16_t narrow_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// IEEE 754 binary16, subnormal numbers included.
[[nodiscard]] inline float widen_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

/// The nearest number that binary16 has, ties to even; the largest one beyond its range.
[[nodiscard]] inline float round_to_f16(float value) noexcept {
  constexpr float kLargest = 65504.0f;
  const float size = std::fabs(value);
  if (!(size < kLargest)) return size >= kLargest ? std::copysign(kLargest, value) : value;
  if (size < 0x1p-14f) {  // whole steps of 2^-24; adding 1.5 * 2^23 rounds to an integer
    constexpr float kRounder = 0x1.8p23f;
    return std::copysign(((size * 0x1p24f + kRounder) - kRounder) * 0x1p-24f, value);
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0xfff + ((bits >> 13) & 1)) & ~std::uint32_t{0x1fff});
}

/// The same as bits. Pre: value is a number.
[[nodiscard]] inline std::uint16_t narrow_to_f16(float value) noexcept {
  const float rounded = round_to_f16(value);
  const float size = std::fabs(rounded);
  const std::uint32_t sign = (std::bit_cast<std::uint32_t>(rounded) >> 16) & 0x8000;
  const std::uint32_t bits = size < 0x1p-14f
                                 ? static_cast<std::uint32_t>(size * 0x1p24f)
                                 : (std::bit_cast<std::uint32_t>(size) >> 13) - ((127 - 15) << 10);
  return static_cast<std::uint16_t>(sign | bits);
}

}  // namespace troupe
