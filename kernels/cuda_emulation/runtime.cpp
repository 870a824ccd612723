// The runtime's functions, implemented with device_memory.hpp and block.hpp.

#include <cstring>
#include <new>
#include <utility>

#include "kernels/cuda_emulation/cuda_runtime.h"

namespace troupe::cuda_emulation {

struct Stream {};

namespace {

/// The last error of the calling thread.
struct LastError {
  cudaError_t status = cudaSuccess;
  std::string text;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

cudaError_t set_error(cudaError_t status, std::string text) {
  last_error() = {status, std::move(text)};
  return status;
}

bool is_allowed(const dim3& grid, const dim3& block) {
  const std::uint64_t num_threads = std::uint64_t{block.x} * block.y * block.z;
  return num_threads >= 1 && num_threads <= 1024 && block.z <= 64 && grid.x >= 1 &&
         grid.x <= 0x7fffffff && grid.y >= 1 && grid.y <= 0xffff && grid.z >= 1 && grid.z <= 0xffff;
}

std::string shape_name(const dim3& shape) {
  return "(" + std::to_string(shape.x) + ", " + std::to_string(shape.y) + ", " +
         std::to_string(shape.z) + ")";
}

}  // namespace

cudaError_t cudaGetLastError() noexcept { return std::exchange(last_error().status, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t status) noexcept {
  return status == cudaSuccess ? "no error" : last_error().text.c_str();
}

cudaError_t cudaMalloc(void** data, std::size_t num_bytes) noexcept {
  *data = allocate_device_memory(num_bytes);
  return *data != nullptr ? cudaSuccess : set_error(cudaErrorMemoryAllocation, "out of memory");
}

cudaError_t cudaFree(void* data) noexcept {
  std::string fault = free_device_memory(data);
  return fault.empty() ? cudaSuccess : set_error(cudaErrorLaunchFailure, std::move(fault));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t num_bytes, cudaMemcpyKind,
                            cudaStream_t) noexcept {
  const DeviceAccess access;
  if (num_bytes > 0) std::memmove(to, from, num_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t num_bytes, cudaStream_t) noexcept {
  const DeviceAccess access;
  if (num_bytes > 0) std::memset(data, value, num_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) noexcept {
  *total_bytes = kDeviceBytes;
  *free_bytes = free_device_bytes();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) noexcept {
  *stream = new (std::nothrow) Stream;
  return *stream != nullptr ? cudaSuccess : set_error(cudaErrorMemoryAllocation, "out of memory");
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) noexcept {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) noexcept {
  std::string fault = check_device_memory();
  return fault.empty() ? cudaSuccess : set_error(cudaErrorLaunchFailure, std::move(fault));
}

cudaError_t launch_kernel(const LaunchShape& shape,
                          const std::function<void()>& kernel_call) noexcept {
  if (!is_allowed(shape.grid, shape.block))
    return set_error(cudaErrorInvalidConfiguration, "a launch of " + shape_name(shape.grid) +
                                                        " blocks of " + shape_name(shape.block) +
                                                        " threads");
  const DeviceAccess access;
  std::string fault = run_grid(shape, kernel_call);
  return fault.empty() ? cudaSuccess : set_error(cudaErrorLaunchFailure, std::move(fault));
}

}  // namespace troupe::cuda_emulation
