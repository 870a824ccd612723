#pragma once
// The subset of CUDA's language and runtime that kernels/cuda uses, for a C++ compiler: included
// before each .cu file that is compiled for the CPU (kernels/CMakeLists.txt). Stream operations are
// complete when the call returns; block.hpp describes how kernels run, device_memory.hpp the
// memory.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/cuda_emulation/block.hpp"
#include "kernels/cuda_emulation/device_memory.hpp"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

/// Replaces __shared__: a variable of the block, of any type without a constructor; and the dynamic
/// shared memory. Lambdas capture them by reference only.
#define TROUPE_SHARED(name, ...) \
  auto& name = ::troupe::cuda_emulation::shared<std::type_identity_t<__VA_ARGS__>>([] {})
#define TROUPE_DYNAMIC_SHARED(name, type) \
  auto* name = static_cast<type*>(        \
      ::troupe::cuda_emulation::shared_variable(nullptr, 0, std::source_location::current()))

namespace troupe::cuda_emulation {

template <class T, class Key>
T& shared(Key, const Place& place = Place::current()) {
  static constexpr char kKey = 0;  // one for each source location and instantiation
  return *static_cast<T*>(shared_variable(&kKey, sizeof(T), place));
}

inline void __syncthreads(const Place& place = Place::current()) { block_barrier(place); }
inline void __syncwarp(unsigned mask = 0xffffffffu, const Place& place = Place::current()) {
  warp_exchange(WarpOperation::kSync, mask, 0, 0, place);
}

inline unsigned lane_of_thread() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

/// The value of lane `source` of the thread's own group of `width` lanes; its own value if outside.
template <class T>
T shuffle(unsigned mask, T value, int source, int width, const Place& place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  const auto lane = static_cast<int>(lane_of_thread());
  const int first = lane / width * width;
  const bool is_inside = source >= first && source < first + width;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(WarpOperation::kShuffle, mask, bits,
                       static_cast<unsigned>(is_inside ? source : lane), place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              const Place& place = Place::current()) {
  const auto lane = static_cast<int>(lane_of_thread());
  return shuffle(mask, value, lane / width * width + (source & (width - 1)), width, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   const Place& place = Place::current()) {
  return shuffle(mask, value, static_cast<int>(lane_of_thread() + distance), width, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 const Place& place = Place::current()) {
  const auto lane = static_cast<int>(lane_of_thread());
  return shuffle(mask, value, lane - static_cast<int>(distance), width, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  const Place& place = Place::current()) {
  return shuffle(mask, value, static_cast<int>(lane_of_thread()) ^ lane_mask, width, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, const Place& place = Place::current()) {
  return static_cast<unsigned>(
      warp_exchange(WarpOperation::kBallot, mask, predicate != 0, 0, place));
}
inline int __any_sync(unsigned mask, int predicate, const Place& place = Place::current()) {
  return __ballot_sync(mask, predicate, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const Place& place = Place::current()) {
  return __ballot_sync(mask, predicate, place) == mask;
}

// Threads switch only where they wait, so code between is atomic.
template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  if (old < value) *address = value;
  return old;
}

/// Rounded twice, first to 53 bits: the CPU's own fused operation may be a function call.
inline float __fmaf_rn(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) +
                            static_cast<double>(c));
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
/// sum + the inner product of four signed bytes each.
inline int __dp4a(int a, int b, int sum) {
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<std::int8_t>(a >> shift) * static_cast<std::int8_t>(b >> shift);
  return sum;
}

template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

// ---- Runtime ---------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
using cudaStream_t = struct Stream*;
inline constexpr unsigned cudaStreamNonBlocking = 1;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
struct cudaFuncAttributes {};

/// The calling thread's last error, which is cleared.
cudaError_t cudaGetLastError() noexcept;
/// For a failed launch: the kernel's error.
const char* cudaGetErrorString(cudaError_t status) noexcept;

/// There is one.
inline cudaError_t cudaGetDeviceCount(int* count) noexcept {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) noexcept { return cudaSuccess; }

cudaError_t cudaMalloc(void** data, std::size_t num_bytes) noexcept;
cudaError_t cudaFree(void* data) noexcept;
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) noexcept;
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t num_bytes,
                            cudaStream_t stream) noexcept;
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) noexcept;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) noexcept;
cudaError_t cudaStreamDestroy(cudaStream_t stream) noexcept;
cudaError_t cudaStreamSynchronize(cudaStream_t stream) noexcept;

/// Every kernel exists.
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) noexcept {
  return cudaSuccess;
}

/// Runs the kernel. kernel_call() is one thread's.
cudaError_t launch_kernel(const LaunchShape& shape,
                          const std::function<void()>& kernel_call) noexcept;

template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Args&... args) noexcept {
  return launch_kernel({config->gridDim, config->blockDim, config->dynamicSmemBytes},
                       [&] { kernel(Parameters(args)...); });
}

}  // namespace troupe::cuda_emulation

namespace troupe {
using namespace cuda_emulation;
}
