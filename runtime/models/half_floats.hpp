#pragma once
// 16-bit floating point numbers as checkpoints hold them.

#include <bit>
#include <cmath>
#include <cstdint>

namespace troupe {

[[nodiscard]] inline float widen_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
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
  if (std::fabs(value) >= kLargest) return std::copysign(kLargest, value);
  int exponent = 0;
  std::frexp(value, &exponent);
  const float step = std::ldexp(1.0f, exponent < -13 ? -24 : exponent - 11);
  return std::nearbyint(value / step) * step;
}

}  // namespace troupe
