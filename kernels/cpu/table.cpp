// The OpTable of one instruction set.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/simd.hpp"

#define TROUPE_STRINGIFY_(name) #name
#define TROUPE_STRINGIFY(name) TROUPE_STRINGIFY_(name)

namespace troupe::TROUPE_ISA {

namespace {

constexpr OpTable make_table() {
  OpTable table = {
      .name = TROUPE_STRINGIFY(TROUPE_ISA),
      .packed_bytes = packed_bytes,
      .pack_rows = pack_rows,
      .pack_quantized_rows = pack_quantized_rows,
      .matmul_workspace_bytes = matmul_workspace_bytes,
      .matmul = matmul,
      .gated_mlp_workspace_bytes = gated_mlp_workspace_bytes,
      .gated_mlp = gated_mlp,
      .embedding = embedding,
      .rms_norm = rms_norm,
      .add_rms_norm = add_rms_norm,
      .layer_norm = layer_norm,
      .rope_and_write_kv = rope_and_write_kv,
      .attention_workspace_bytes = attention_workspace_bytes,
      .attention = attention,
      .gelu_tanh = gelu_tanh,
      .add = add,
      .scale = scale,
      .gather_rows = gather_rows,
      .log_softmax = log_softmax,
      .token_ranks = token_ranks,
      .argmax = argmax,
  };
#if defined(TROUPE_BF16_DOT)
  table.compact_bytes = compact_bytes;
  table.compact = compact;
#endif
  return table;
}

}  // namespace

const OpTable& op_table() noexcept {
  static constexpr OpTable kTable = make_table();
  return kTable;
}

}  // namespace troupe::TROUPE_ISA
