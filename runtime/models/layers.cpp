#include "runtime/models/layers.hpp"

#include <algorithm>

namespace troupe {

Linear::Linear(WeightLoader& loader, const std::vector<WeightLoader::Part>& parts,
               std::int64_t num_cols, bool has_bias, std::int32_t k_shards)
    : weight_(loader.matrix(parts, num_cols, k_shards)) {
  if (has_bias) bias_ = loader.biases(parts);
}

void Linear::apply(const OpTable& ops, const OpContext& context, ConstMatrix x, Matrix out) const {
  ops.matmul(context, {.x = x,
                       .weight = weight_.view(),
                       .bias = bias_.empty() ? nullptr : bias_.data(),
                       .out = out});
}

RmsNorm::RmsNorm(WeightLoader& loader, const std::string& name, std::int64_t size, NormStyle style)
    : weight_(loader.vector(name, size)), style_(style) {}

void RmsNorm::apply(const LayerStep& step, Heads x) const {
  step.ops.rms_norm(step.context, {.x = x,
                                   .weight = weight_.data(),
                                   .weight_offset = style_.weight_offset,
                                   .eps = style_.eps,
                                   .out = x});
}

void RmsNorm::add_and_apply(const LayerStep& step, ConstMatrix x, Matrix residual,
                            Matrix out) const {
  step.ops.add_rms_norm(step.context, {.x = x,
                                       .residual = residual,
                                       .weight = weight_.data(),
                                       .weight_offset = style_.weight_offset,
                                       .eps = style_.eps,
                                       .out = out});
}

Attention::Attention(WeightLoader& loader, const std::string& name, AttentionOptions options)
    : options_(std::move(options)),
      qkv_proj_(loader,
                {{name + ".q_proj", q_size()},
                 {name + ".k_proj", kv_size()},
                 {name + ".v_proj", kv_size()}},
                options_.hidden_size, options_.qkv_bias),
      o_proj_(loader, {{name + ".o_proj", options_.hidden_size}}, q_size(), options_.output_bias,
              options_.canonical_shards) {
  if (!options_.qk_norm) return;
  q_norm_ = RmsNorm(loader, name + ".q_norm", options_.head_dim, options_.norm);
  k_norm_ = RmsNorm(loader, name + ".k_norm", options_.head_dim, options_.norm);
}

std::int64_t Attention::q_size() const noexcept { return options_.num_heads * options_.head_dim; }
std::int64_t Attention::kv_size() const noexcept {
  return options_.num_kv_heads * options_.head_dim;
}

void Attention::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const ForwardBatch& batch = step.batch;
  const LayerKvCache& cache = step.caches[options_.layer];
  const ForwardBatch::Group& group = batch.groups[cache.group];
  const std::int64_t num_tokens = batch.num_tokens();
  Scratch scratch = step.scratch;

  const std::int64_t row_size = q_size() + 2 * kv_size();
  const Matrix qkv = scratch.take(num_tokens, row_size);
  qkv_proj_.apply(step.ops, step.context, x, qkv);
  const Heads q(qkv.data, num_tokens, options_.num_heads, options_.head_dim, row_size);
  const Heads k(qkv.data + q_size(), num_tokens, options_.num_kv_heads, options_.head_dim,
                row_size);
  const Heads v(k.data + kv_size(), num_tokens, options_.num_kv_heads, options_.head_dim, row_size);
  if (options_.qk_norm) {
    q_norm_.apply(step, q);
    k_norm_.apply(step, k);
  }
  options_.rope->apply(step.ops, step.context, q, k, batch.positions.data());

  step.ops.write_kv(step.context, {.k = k, .v = v, .slots = group.slots, .cache = cache.pages});
  const Matrix attended = scratch.take(num_tokens, q_size());
  step.ops.attention(step.context, {.q = q,
                                    .cache = cache.pages,
                                    .query_start_loc = batch.query_start_loc.data(),
                                    .seq_lens = batch.seq_lens.data(),
                                    .block_tables = group.block_tables,
                                    .block_table_stride = group.block_table_stride,
                                    .num_seqs = static_cast<std::int64_t>(batch.seq_lens.size()),
                                    .scale = options_.scale,
                                    .sliding_window = options_.sliding_window,
                                    .logit_softcap = options_.logit_softcap,
                                    .out = Heads(attended.data, num_tokens, options_.num_heads,
                                                 options_.head_dim, q_size())});
  o_proj_.apply(step.ops, step.context, attended, out);
}

std::int64_t Attention::scratch_bytes(std::int64_t num_tokens) const noexcept {
  return Scratch::padded_bytes(num_tokens, q_size() + 2 * kv_size()) +
         Scratch::padded_bytes(num_tokens, q_size());
}

std::int64_t Attention::workspace_bytes(Device& device, std::int64_t num_tokens,
                                        std::int64_t max_seq_len) const noexcept {
  const OpTable& ops = device.ops();
  return std::max({ops.matmul_workspace_bytes(qkv_proj_.spec(), num_tokens),
                   ops.matmul_workspace_bytes(o_proj_.spec(), num_tokens),
                   ops.attention_workspace_bytes({.num_heads = options_.num_heads,
                                                  .num_kv_heads = options_.num_kv_heads,
                                                  .head_dim = options_.head_dim,
                                                  .max_seq_len = max_seq_len},
                                                 device.pool().num_threads())});
}

KVCacheSpec Attention::kv_cache_spec(std::int32_t block_size, DType dtype) const {
  return {.kind = options_.sliding_window > 0 ? KVCacheKind::kSlidingWindow
                                              : KVCacheKind::kFullAttention,
          .block_size = block_size,
          .num_kv_heads = static_cast<std::int32_t>(options_.num_kv_heads),
          .head_dim = static_cast<std::int32_t>(options_.head_dim),
          .dtype = dtype,
          .sliding_window = options_.sliding_window};
}

GatedMlp::GatedMlp(WeightLoader& loader, const std::string& name, std::int64_t hidden_size,
                   std::int64_t intermediate_size, std::int32_t canonical_shards,
                   Activation activation, bool has_bias)
    : intermediate_size_(intermediate_size),
      activation_(activation),
      gate_up_proj_(
          loader,
          {{name + ".gate_proj", intermediate_size}, {name + ".up_proj", intermediate_size}},
          hidden_size, has_bias),
      down_proj_(loader, {{name + ".down_proj", hidden_size}}, intermediate_size, has_bias,
                 canonical_shards) {}

void GatedMlp::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  Scratch scratch = step.scratch;
  const Matrix gate_up = scratch.take(x.num_rows, 2 * intermediate_size_);
  const Matrix activated = scratch.take(x.num_rows, intermediate_size_);
  gate_up_proj_.apply(step.ops, step.context, x, gate_up);
  const GatedArgs gated{.x = gate_up, .out = activated};
  if (activation_ == Activation::kSilu)
    step.ops.silu_and_mul(step.context, gated);
  else
    step.ops.gelu_tanh_and_mul(step.context, gated);
  down_proj_.apply(step.ops, step.context, activated, out);
}

std::int64_t GatedMlp::scratch_bytes(std::int64_t num_tokens) const noexcept {
  return Scratch::padded_bytes(num_tokens, 2 * intermediate_size_) +
         Scratch::padded_bytes(num_tokens, intermediate_size_);
}

std::int64_t GatedMlp::workspace_bytes(Device& device, std::int64_t num_tokens) const noexcept {
  return std::max(device.ops().matmul_workspace_bytes(gate_up_proj_.spec(), num_tokens),
                  device.ops().matmul_workspace_bytes(down_proj_.spec(), num_tokens));
}

}  // namespace troupe
