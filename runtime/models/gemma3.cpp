// Gemma 3, the language model (arXiv 2503.19786): norms before and after each block, norms on q and
// k, and local layers with a rotary base of their own between global ones. Norm weights are stored
// minus one; embeddings are multiplied by sqrt(hidden_size).

#include <cmath>

#include "runtime/models/architectures.hpp"
#include "runtime/models/decoder.hpp"

namespace troupe {
namespace {

class Gemma3Layer final : public DecoderLayer {
 public:
  Gemma3Layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
              const AttentionOptions& attention)
      : DecoderLayer(RmsNorm(loader, name + ".input_layernorm", config.hidden_size, attention.norm),
                     Attention(loader, name + ".self_attn", attention),
                     GatedMlp(loader, name + ".mlp", config.hidden_size, config.intermediate_size,
                              config.canonical_shards(), Activation::kGeluTanh, false)),
        post_attention_norm_(loader, name + ".post_attention_layernorm", config.hidden_size,
                             attention.norm),
        pre_mlp_norm_(loader, name + ".pre_feedforward_layernorm", config.hidden_size,
                      attention.norm),
        post_mlp_norm_(loader, name + ".post_feedforward_layernorm", config.hidden_size,
                       attention.norm) {}

 private:
  void forward_mlp(const LayerStep& step, Matrix residual, Matrix x, Matrix normed) const override {
    post_attention_norm_.apply(step, x);
    pre_mlp_norm_.add_and_apply(step, x, residual, normed);
    mlp_.forward(step, normed, x);
    post_mlp_norm_.apply(step, x);
  }

  RmsNorm post_attention_norm_;
  RmsNorm pre_mlp_norm_;
  RmsNorm post_mlp_norm_;
};

}  // namespace

std::unique_ptr<Model> make_gemma3(const ModelConfig& config, Device& device,
                                   WeightLoader& loader) {
  // Of a checkpoint that also sees, only the language model is loaded.
  for (const char* prefix : {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                             "model.multi_modal_projector."})
    loader.ignore(prefix);
  const NormStyle norm{.eps = config.rms_norm_eps,
                       .weight_offset = config.norm_weights_include_one ? 0.0f : 1.0f};
  const auto global_rope =
      std::make_shared<const RotaryEmbedding>(config.rope, config.head_dim, config.max_model_len);
  const auto local_rope = std::make_shared<const RotaryEmbedding>(
      config.sliding_rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention =
        attention_options(config, i, config.sliding_windows[i] > 0 ? local_rope : global_rope);
    attention.qk_norm = true;
    attention.norm = norm;
    attention.qkv_bias = config.attention_bias;
    attention.output_bias = config.attention_output_bias;
    layers.push_back(
        std::make_unique<Gemma3Layer>(loader, prefix + std::to_string(i), config, attention));
  }
  return std::make_unique<DecoderModel>(
      config, device, loader, std::move(layers),
      DecoderOptions{.norm = norm,
                     .embedding_scale = std::sqrt(static_cast<float>(config.hidden_size))});
}

}  // namespace troupe
