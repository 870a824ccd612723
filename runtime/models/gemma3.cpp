// Gemma 3, the language model (arXiv 2503.19786): norms before and after each block, norms on q and
// k, and local layers with a rotary base of their own between global ones. Norm weights are stored
// minus one; embeddings are multiplied by sqrt(hidden_size).

#include <cmath>

#include "runtime/models/architectures.hpp"
#include "runtime/models/decoder.hpp"

namespace troupe {
namespace {

DecoderLayer load_layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                        const AttentionOptions& attention) {
  const auto norm = [&](const std::string& suffix) {
    return RmsNorm(loader, name + suffix, config.hidden_size, attention.norm);
  };
  RmsNorm input_norm = norm(".input_layernorm");
  auto attend = std::make_unique<const Attention>(loader, name + ".self_attn", attention);
  auto mlp = std::make_unique<const GatedMlp>(loader, name + ".mlp", config.hidden_size,
                                              config.intermediate_size, config.canonical_shards(),
                                              Activation::kGeluTanh, false);
  std::vector<NormedMixer> mixers;
  mixers.push_back({std::move(input_norm), std::move(attend), norm(".post_attention_layernorm")});
  mixers.push_back(
      {norm(".pre_feedforward_layernorm"), std::move(mlp), norm(".post_feedforward_layernorm")});
  return DecoderLayer(std::move(mixers));
}

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
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention =
        attention_options(config, i, config.sliding_windows[i] > 0 ? local_rope : global_rope);
    attention.qk_norm = true;
    attention.norm = norm;
    attention.qkv_bias = config.attention_bias;
    attention.output_bias = config.attention_output_bias;
    layers.push_back(load_layer(loader, prefix + std::to_string(i), config, attention));
  }
  return std::make_unique<DecoderModel>(
      config, device, loader, std::move(layers),
      DecoderOptions{.norm = norm,
                     .embedding_scale = std::sqrt(static_cast<float>(config.hidden_size))});
}

}  // namespace troupe
