// The OpTable of NVIDIA GPUs, and whether one is here.

#include "kernels/backend.hpp"
#include "kernels/cuda/cuda_ops.hpp"

namespace troupe {
namespace {

constexpr OpTable kCudaTable = {
    .name = "cuda",
    .packed_bytes = cuda::packed_bytes,
    .pack_rows = cuda::pack_rows,
    .matmul_workspace_bytes = cuda::matmul_workspace_bytes,
    .matmul = cuda::matmul,
    .gated_mlp_workspace_bytes = cuda::gated_mlp_workspace_bytes,
    .gated_mlp = cuda::gated_mlp,
    .embedding = cuda::embedding,
    .rms_norm = cuda::rms_norm,
    .add_rms_norm = cuda::add_rms_norm,
    .layer_norm = cuda::layer_norm,
    .rope_and_write_kv = cuda::rope_and_write_kv,
    .attention_workspace_bytes = cuda::attention_workspace_bytes,
    .attention = cuda::attention,
    .gelu_tanh = cuda::gelu_tanh,
    .add = cuda::add,
    .scale = cuda::scale,
    .gather_rows = cuda::gather_rows,
    .log_softmax = cuda::log_softmax,
    .token_ranks = cuda::token_ranks,
    .argmax = cuda::argmax,
};

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
