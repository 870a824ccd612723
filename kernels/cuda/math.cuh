#pragma once
// Activation functions.

namespace troupe::TROUPE_DEVICE::math {

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ inline float gelu_erf(float x) {
  return 0.5f * x * (1.0f + erff(0.70710678118654752f * x));
}

__device__ inline float gelu_tanh(float x) {
  const float cubic = 0.044715f * (x * x) * x;
  const float inner = 0.79788456080286536f * (x + cubic);
  return 0.5f * x * (1.0f + tanhf(inner));
}

__device__ inline float swish(float x, float alpha) { return x / (1.0f + expf(-alpha * x)); }

__device__ inline float gelu_sigmoid(float x) { return swish(x, 1.702f); }

}  // namespace troupe::TROUPE_DEVICE::math
