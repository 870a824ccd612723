#include "runtime/models/pre_norm_decoder.hpp"

#include <string>
#include <utility>
#include <vector>

#include "runtime/models/decoder.hpp"

namespace troupe {
namespace {

DecoderLayer load_layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                        const AttentionOptions& attention) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  RmsNorm input_norm(loader, name + ".input_layernorm", config.hidden_size, norm);
  auto attend = std::make_unique<const Attention>(loader, name + ".self_attn", attention);
  auto mlp = std::make_unique<const GatedMlp>(loader, name + ".mlp", config.hidden_size,
                                              config.intermediate_size, config.canonical_shards(),
                                              Activation::kSilu, config.mlp_bias);
  RmsNorm mlp_norm(loader, name + ".post_attention_layernorm", config.hidden_size, norm);
  std::vector<NormedMixer> mixers;
  mixers.push_back({std::move(input_norm), std::move(attend), std::nullopt});
  mixers.push_back({std::move(mlp_norm), std::move(mlp), std::nullopt});
  return DecoderLayer(std::move(mixers));
}

}  // namespace

std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, AttentionExtras extras) {
  const auto rope =
      std::make_shared<const RotaryEmbedding>(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention = attention_options(config, i, rope);
    attention.qkv_bias = extras.qkv_bias;
    attention.output_bias = extras.output_bias;
    attention.qk_norm = extras.qk_norm;
    layers.push_back(load_layer(loader, prefix + std::to_string(i), config, attention));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = {.eps = config.rms_norm_eps}});
}

}  // namespace troupe
