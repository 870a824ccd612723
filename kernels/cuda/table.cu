// The tables of NVIDIA GPUs, and whether one is here.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/memory.hpp"

#define TROUPE_STRINGIFY_(name) #name
#define TROUPE_STRINGIFY(name) TROUPE_STRINGIFY_(name)

namespace troupe::TROUPE_DEVICE {
namespace {

/// Asked for its attributes, to see whether this build has code for the device.
__global__ void empty_kernel() {}

std::string why_unavailable() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, empty_kernel);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // Reported here, so cleared for synchronize.
  return cudaGetErrorString(status);
}

// clang-format off
constexpr OpTable kOpTable = {.name = TROUPE_STRINGIFY(TROUPE_DEVICE),
                              TROUPE_OPERATIONS(TROUPE_OPERATION_ENTRY)
                              TROUPE_EXPERT_OPERATIONS(TROUPE_OPERATION_ENTRY)};
// clang-format on

constexpr DeviceTable kDeviceTable = {
    .ops = &kOpTable,
    .why_unavailable = why_unavailable,
    .count = count,
    .select = select,
    .free_bytes = free_bytes,
    .allocate = allocate,
    .release = release,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .copy_to_device = copy_to_device,
    .copy_to_host = copy_to_host,
    .copy = copy,
    .fill_zero = fill_zero,
    .synchronize = synchronize,
};

}  // namespace

const DeviceTable& device_table() noexcept { return kDeviceTable; }

}  // namespace troupe::TROUPE_DEVICE
