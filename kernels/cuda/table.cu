// The OpTable of NVIDIA GPUs, and whether one is here.

#include "kernels/backend.hpp"
#include "kernels/cuda/cuda_ops.hpp"

namespace troupe {
namespace {

using namespace cuda;

// clang-format off
constexpr OpTable kCudaTable = {
    .name = "cuda",
    TROUPE_OPERATIONS(TROUPE_OPERATION_ENTRY)
};
// clang-format on

/// Asked for its attributes, to see whether this build has code for the device.
__global__ void empty_kernel() {}

}  // namespace

std::string why_cuda_unavailable() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, empty_kernel);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // Told here; cuda::synchronize need not tell it again.
  return cudaGetErrorString(status);
}

const OpTable* cuda_ops() noexcept { return &kCudaTable; }

}  // namespace troupe
