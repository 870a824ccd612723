#pragma once
// Conversion of numbers of each ElementType in device memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_DEVICE {

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__host__ __device__ inline float to_float(__half value) { return __half2float(value); }

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

/// Calls f(a value of the C++ type that stores `type`).
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
      return;  // 8-bit KV caches are supported on CPUs only
  }
}

}  // namespace troupe::TROUPE_DEVICE
