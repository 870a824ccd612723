#pragma once
// The two ways to distribute work: a thread for each element, or a block for each row. Blocks have
// kBlockThreads threads whatever the shape, and sums over a row are in an order that depends only
// on its length; so a row's bits do not depend on other rows.

#include <cstdint>
#include <type_traits>

#include "kernels/ops.hpp"

/// A __shared__ variable of any type without a constructor: TROUPE_SHARED(tile, float[4]). Lambdas
/// capture it by reference only. The emulation defines its own.
#if !defined(TROUPE_SHARED)
#define TROUPE_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#endif

namespace troupe::TROUPE_DEVICE {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;

inline constexpr float kInfinity = __builtin_huge_valf();

__host__ __device__ constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

inline cudaStream_t stream_of(const OpContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

/// kernel<<<grid, threads>>>(args...) on the context's stream.
template <class... Parameters, class... Args>
void launch(const OpContext& context, dim3 grid, dim3 threads, void (*kernel)(Parameters...),
            const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.stream = stream_of(context);
  cudaLaunchKernelEx(&config, kernel, args...);
}

template <class F>
__global__ void __launch_bounds__(kBlockThreads) element_kernel(std::int64_t num_elements, F f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (i < num_elements) f(i);
}

/// Runs f(i) for each i in [0, num_elements), each on its own thread.
template <class F>
void for_each_element(const OpContext& context, std::int64_t num_elements, const F& f) {
  if (num_elements == 0) return;  // CUDA rejects an empty grid.
  const auto num_blocks = static_cast<unsigned>(ceil_div(num_elements, kBlockThreads));
  launch(context, num_blocks, kBlockThreads, element_kernel<F>, num_elements, f);
}

template <class F>
__global__ void __launch_bounds__(kBlockThreads) row_kernel(F f) {
  f(static_cast<std::int64_t>(blockIdx.x));
}

/// Runs f(row) for each row, on all threads of its own block.
template <class F>
void for_each_row(const OpContext& context, std::int64_t num_rows, const F& f) {
  if (num_rows == 0) return;
  launch(context, static_cast<unsigned>(num_rows), kBlockThreads, row_kernel<F>, f);
}

/// Runs f(i) for each i in [0, n), distributed over the threads of the block.
template <class F>
__device__ void for_each_of_block(std::int64_t n, const F& f) {
  for (std::int64_t i = threadIdx.x; i < n; i += kBlockThreads) f(i);
}

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

/// The larger one; NaN only if both are.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Reduces the threads' values in a fixed tree; every thread of the block calls this and gets the
/// result.
template <class T, class Combine>
__device__ T reduce_block(T value, const Combine& combine) {
  TROUPE_SHARED(of_warp, T[kBlockWarps]);
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_down_sync(0xffffffffu, value, distance));
  }
  if (threadIdx.x % kWarpThreads == 0) of_warp[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  T result = of_warp[0];
  for (int warp = 1; warp < kBlockWarps; ++warp) result = combine(result, of_warp[warp]);
  __syncthreads();  // The next call writes of_warp again.
  return result;
}

/// The sum of term(i) for i in [0, n): each thread sums its own in order, then reduce_block.
template <class T, class Term>
__device__ T sum_over(std::int64_t n, const Term& term) {
  T sum = 0;
  for_each_of_block(n, [&](std::int64_t i) { sum += term(i); });
  return reduce_block(sum, Sum{});
}

}  // namespace troupe::TROUPE_DEVICE
