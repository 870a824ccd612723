#pragma once
// The functions behind the OpTable of NVIDIA GPUs. See kernels/ops.hpp for what they do.
//
// Every pointer in the arguments is device memory, index arrays and block tables too; so nothing
// here can plan by what they hold. An operation is launched on OpContext::stream and returns before
// it ran. OpContext::pool is not used, and of the operations only gated_mlp uses ::workspace.

#include "kernels/ops.hpp"

namespace troupe::cuda {

// pack_rows and the functions that return bytes run on the host and need no GPU. A weight is packed
// in host memory and copied to the device as bytes.
std::int64_t packed_bytes(const WeightSpec& spec) noexcept;
void pack_rows(const WeightSpec& spec, const StoredMatrix& part, std::int64_t first_row,
               std::byte* packed) noexcept;
std::int64_t matmul_workspace_bytes(const WeightSpec& spec, std::int64_t max_rows) noexcept;
void matmul(const OpContext& context, const MatmulArgs& args) noexcept;
std::int64_t gated_mlp_workspace_bytes(const WeightSpec& gate_up, const WeightSpec& down,
                                       std::int64_t max_rows) noexcept;
void gated_mlp(const OpContext& context, const GatedMlpArgs& args) noexcept;

void embedding(const OpContext& context, const EmbeddingArgs& args) noexcept;
void gather_rows(const OpContext& context, const GatherRowsArgs& args) noexcept;
void rms_norm(const OpContext& context, const RmsNormArgs& args) noexcept;
void add_rms_norm(const OpContext& context, const AddRmsNormArgs& args) noexcept;
void layer_norm(const OpContext& context, const LayerNormArgs& args) noexcept;

void rope_and_write_kv(const OpContext& context, const RopeAndWriteKvArgs& args) noexcept;
std::int64_t attention_workspace_bytes(const AttentionShape& shape, int num_threads) noexcept;
void attention(const OpContext& context, const AttentionArgs& args) noexcept;

void gelu_tanh(const OpContext& context, const UnaryArgs& args) noexcept;
void add(const OpContext& context, const AddArgs& args) noexcept;
void scale(const OpContext& context, const ScaleArgs& args) noexcept;
void log_softmax(const OpContext& context, const LogSoftmaxArgs& args) noexcept;
void token_ranks(const OpContext& context, const TokenRanksArgs& args) noexcept;
void argmax(const OpContext& context, const ArgmaxArgs& args) noexcept;

}  // namespace troupe::cuda
