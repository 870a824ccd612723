// Device memory, streams and copies.

#include "kernels/cuda/memory.hpp"

namespace troupe::TROUPE_DEVICE {

int count() noexcept {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess ? num_devices : 0;
}

void select(int index) noexcept { cudaSetDevice(index); }

std::int64_t free_bytes() noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
}

std::byte* allocate(std::int64_t num_bytes) noexcept {
  void* data = nullptr;
  if (cudaMalloc(&data, static_cast<std::size_t>(num_bytes)) == cudaSuccess)
    return static_cast<std::byte*>(data);
  cudaGetLastError();  // Reported by the null, so cleared for synchronize.
  return nullptr;
}

void release(std::byte* data) noexcept { cudaFree(data); }

void* create_stream() noexcept {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) return stream;
  cudaGetLastError();
  return nullptr;
}

void destroy_stream(void* stream) noexcept { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

void copy_to_device(void* stream, void* device, const void* host, std::int64_t num_bytes) noexcept {
  cudaMemcpyAsync(device, host, static_cast<std::size_t>(num_bytes), cudaMemcpyHostToDevice,
                  static_cast<cudaStream_t>(stream));
}

void copy_to_host(void* stream, void* host, const void* device, std::int64_t num_bytes) noexcept {
  cudaMemcpyAsync(host, device, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToHost,
                  static_cast<cudaStream_t>(stream));
}

void copy(void* stream, void* to, const void* from, std::int64_t num_bytes) noexcept {
  cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToDevice,
                  static_cast<cudaStream_t>(stream));
}

void fill_zero(void* stream, void* data, std::int64_t num_bytes) noexcept {
  cudaMemsetAsync(data, 0, static_cast<std::size_t>(num_bytes), static_cast<cudaStream_t>(stream));
}

std::string synchronize(void* stream) {
  cudaError_t status = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  const cudaError_t earlier = cudaGetLastError();
  if (status == cudaSuccess) status = earlier;
  return status == cudaSuccess ? std::string() : cudaGetErrorString(status);
}

}  // namespace troupe::TROUPE_DEVICE
