#pragma once
// Normalisation of one row by all threads of a block.

#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {

/// 1 / sqrt(mean(x^2) + eps); every thread of the block calls this and gets the result, after all
/// have read x.
__device__ inline float rms_norm_factor(const float* x, std::int64_t n, float eps) {
  const float squares = sum_over<float>(n, [=](std::int64_t i) { return x[i] * x[i]; });
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

}  // namespace troupe::TROUPE_DEVICE
