#pragma once
// Conversion of numbers of each ElementType in device memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_DEVICE {

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__host__ __device__ inline float to_float(__half value) { return __half2float(value); }

/// Numbers of 8-bit caches (ElementType), to be multiplied by their token's scale.
using Int8 = std::int8_t;
struct F8E4M3 {
  std::uint8_t bits;
};
template <class T>
inline constexpr bool kHasScale = sizeof(T) == 1;

__device__ inline float to_float(Int8 value) { return static_cast<float>(value); }
/// 1/256 of the number: with the exponent of an f16, whose bias is larger by 8.
__device__ inline float to_float(F8E4M3 value) {
  const int half = (value.bits & 0x80) << 8 | (value.bits & 0x7f) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
}

/// The number that the largest of a token is mapped to.
template <class T>
inline constexpr float kLargestNumber = 127.0f;
template <>
inline constexpr float kLargestNumber<F8E4M3> = 1.75f;  // 448 / 256

/// Round to nearest even. Pre: |value| <= kLargestNumber.
template <class T>
__device__ T from_scaled(float value) {
  if constexpr (std::is_same_v<T, Int8>) {
    return static_cast<Int8>(rintf(value));
  } else {
    // 4 significant bits (Dekker, Numerische Mathematik 18, section 5), with a minimum step of
    // 2^-17.
    const float product = __fmul_rn(value, 1048577.0f);
    const float rounded = __fsub_rn(product, __fsub_rn(product, value));
    const float steps = __fsub_rn(__fadd_rn(value, 96.0f), 96.0f);
    const unsigned half =
        __half_as_ushort(__float2half_rn(fabsf(value) < 0x1p-14f ? steps : rounded));
    return {static_cast<std::uint8_t>((half >> 7 & 0x7fu) | (half >> 8 & 0x80u))};
  }
}

/// Round to nearest even.
template <class T>
__host__ __device__ inline T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

/// Calls f(a value of the C++ type that stores `type`). Pre: a wide type.
template <class F>
void with_element_type(ElementType type, const F& f) {
  switch (type) {
    case ElementType::kF32:
      return f(float{});
    case ElementType::kBF16:
      return f(__nv_bfloat16{});
    case ElementType::kF16:
      return f(__half{});
    case ElementType::kI8:
    case ElementType::kF8E4M3:
      return;
  }
}
/// The same for any type of a KV cache.
template <class F>
void with_cache_type(ElementType type, const F& f) {
  if (type == ElementType::kI8) return f(Int8{});
  if (type == ElementType::kF8E4M3) return f(F8E4M3{});
  with_element_type(type, f);
}

}  // namespace troupe::TROUPE_DEVICE
