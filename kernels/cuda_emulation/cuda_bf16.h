#pragma once
// The subset of CUDA's header cuda_bf16.h that kernels/cuda uses.

#include <bit>
#include <cstdint>

namespace troupe::cuda_emulation {

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) noexcept {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

/// Round to nearest even.
inline __nv_bfloat16 __float2bfloat16_rn(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // NaN
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

}  // namespace troupe::cuda_emulation
