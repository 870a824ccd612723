#pragma once
// The subset of CUDA's header cuda_fp16.h that kernels/cuda uses.

#include <bit>
#include <cstdint>

namespace troupe::cuda_emulation {

struct __half {
  std::uint16_t bits;
};

inline std::uint16_t __half_as_ushort(__half value) noexcept { return value.bits; }
inline __half __ushort_as_half(std::uint16_t bits) noexcept { return {bits}; }

inline float __half2float(__half value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  // Read as an f32, the exponent is off by the difference of the biases.
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const bool is_finite = (value.bits & 0x7c00u) != 0x7c00u;
  return std::bit_cast<float>(sign | (is_finite ? scaled : magnitude | 0x7f800000u));
}

/// Round to nearest even.
inline __half __float2half_rn(float value) noexcept {
  const auto all_bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = all_bits >> 16 & 0x8000u;
  std::uint32_t bits = all_bits & 0x7fffffffu;
  if (bits > 0x7f800000u) {
    bits = 0x7e00u;  // NaN
  } else if (bits >= 0x47800000u) {
    bits = 0x7c00u;  // 2^16 or more: infinity
  } else if (bits < 0x38800000u) {
    // Less than 2^-14: a multiple of 2^-24, to which the addition rounds.
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + 0.5f) - 0x3f000000u;
  } else {
    bits = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | bits)};
}

}  // namespace troupe::cuda_emulation
