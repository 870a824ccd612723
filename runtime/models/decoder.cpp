#include "runtime/models/decoder.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace troupe {
namespace {

/// A tied head is the embedding matrix once more, packed for multiplication.
Linear load_head(const ModelConfig& config, WeightLoader& loader) {
  const std::string prefix = weight_prefix(loader);
  std::string name = prefix + "embed_tokens";
  if (!config.tie_word_embeddings)
    name = loader.has("language_model.lm_head.weight") ? "language_model.lm_head" : "lm_head";
  else
    loader.ignore("lm_head.");  // some checkpoints store the tied head again
  return Linear(loader, {{name, config.vocab_size}}, config.hidden_size, false);
}

}  // namespace

std::string weight_prefix(const WeightLoader& loader) {
  static constexpr std::array<std::string_view, 4> kPrefixes = {"model.", "language_model.model.",
                                                                "model.language_model.", ""};
  for (const std::string_view prefix : kPrefixes)
    if (loader.has(std::string(prefix) + "embed_tokens.weight")) return std::string(prefix);
  return std::string(kPrefixes.front());
}

AttentionOptions attention_options(const ModelConfig& config, std::size_t layer,
                                   std::shared_ptr<const RotaryEmbedding> rope) {
  return {.layer = layer,
          .hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = config.attention_scale,
          .logit_softcap = config.attention_logit_softcap,
          .sliding_window = config.sliding_windows[layer],
          .canonical_shards = config.canonical_shards(),
          .norm = {.eps = config.rms_norm_eps},
          .rope = std::move(rope)};
}

PreNormLayer::PreNormLayer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                           AttentionOptions attention)
    : DecoderLayer(Attention(loader, name + ".self_attn", std::move(attention)),
                   GatedMlp(loader, name + ".mlp", config.hidden_size, config.intermediate_size,
                            config.canonical_shards(), Activation::kSilu, config.mlp_bias)),
      input_norm_(loader, name + ".input_layernorm", config.hidden_size,
                  {.eps = config.rms_norm_eps}),
      post_attention_norm_(loader, name + ".post_attention_layernorm", config.hidden_size,
                           {.eps = config.rms_norm_eps}) {}

void PreNormLayer::forward(const LayerStep& step, Matrix residual, Matrix x, Matrix normed) const {
  input_norm_.add_and_apply(step, x, residual, normed);
  attention_.forward(step, normed, x);
  post_attention_norm_.add_and_apply(step, x, residual, normed);
  mlp_.forward(step, normed, x);
}

DecoderModel::DecoderModel(const ModelConfig& config, Device& device, WeightLoader& loader,
                           std::vector<std::unique_ptr<DecoderLayer>> layers,
                           DecoderOptions options)
    : config_(config),
      device_(device),
      options_(options),
      layers_(std::move(layers)),
      embedding_(loader.table(weight_prefix(loader) + "embed_tokens", config.vocab_size,
                              config.hidden_size)),
      final_norm_(loader, weight_prefix(loader) + "norm", config.hidden_size, options.norm),
      head_(load_head(config, loader)),
      weight_bytes_(loader.num_packed_bytes()) {}

std::vector<KVCacheSpec> DecoderModel::kv_cache_specs(std::int32_t block_size, DType dtype) const {
  std::vector<KVCacheSpec> specs;
  for (const auto& layer : layers_)
    specs.push_back(layer->attention().kv_cache_spec(block_size, dtype));
  return specs;
}

Result<std::int64_t> DecoderModel::reserve(const BatchLimits& limits) {
  const std::int64_t num_tokens = limits.max_num_tokens;
  std::int64_t scratch_bytes = 0;
  std::int64_t workspace_bytes =
      device_.ops().matmul_workspace_bytes(head_.spec(), limits.max_num_logit_rows);
  for (const auto& layer : layers_) {
    scratch_bytes = std::max({scratch_bytes, layer->attention().scratch_bytes(num_tokens),
                              layer->mlp().scratch_bytes(num_tokens)});
    workspace_bytes =
        std::max({workspace_bytes,
                  layer->attention().workspace_bytes(device_, num_tokens, config_.max_model_len),
                  layer->mlp().workspace_bytes(device_, num_tokens)});
  }
  constexpr std::int64_t kNumStreams = 3;  // residual, x, normed
  const std::int64_t num_bytes =
      scratch_bytes + kNumStreams * Scratch::padded_bytes(num_tokens, config_.hidden_size);
  ASSIGN_OR_RETURN(activations_,
                   Memory::allocate(static_cast<std::size_t>(num_bytes), "activations"));
  RETURN_IF_ERROR(device_.reserve_workspace(workspace_bytes));
  return num_bytes + workspace_bytes;
}

void DecoderModel::forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches,
                           Matrix hidden) {
  const OpTable& ops = device_.ops();
  Scratch scratch(activations_.bytes());
  const Matrix residual = scratch.take(batch.num_tokens(), config_.hidden_size);
  const Matrix x = scratch.take(batch.num_tokens(), config_.hidden_size);
  const Matrix normed = scratch.take(batch.num_tokens(), config_.hidden_size);
  const LayerStep step{ops, device_.context(), batch, caches, scratch};

  // The stream starts at zero, and the embedding is the first thing that is added to it.
  std::fill_n(residual.data, residual.num_rows * residual.num_cols, 0.0f);
  ops.embedding(step.context, {.table = embedding_,
                               .ids = batch.token_ids.data(),
                               .scale = options_.embedding_scale,
                               .out = x});
  for (const auto& layer : layers_) layer->forward(step, residual, x, normed);
  final_norm_.add_and_apply(step, x, residual, hidden);
}

void DecoderModel::compute_logits(ConstMatrix hidden, Matrix out) {
  head_.apply(device_.ops(), device_.context(), hidden, out);
}

}  // namespace troupe
