#include "runtime/models/pre_norm_decoder.hpp"

#include <string>
#include <utility>
#include <vector>

#include "runtime/models/decoder.hpp"
#include "runtime/models/experts.hpp"

namespace troupe {
namespace {

/// What stands behind the attention of a layer.
std::unique_ptr<const Mixer> load_mlp(WeightLoader& loader, const std::string& layer_name,
                                      const ModelConfig& config, std::size_t layer,
                                      const DecoderExtras& extras) {
  if (!config.experts || !config.experts->layers[layer])
    return std::make_unique<const GatedMlp>(loader, layer_name + ".mlp", config.hidden_size,
                                            config.intermediate_size, config.canonical_shards(),
                                            Activation::kSilu, config.mlp_bias);
  const ExpertsConfig& experts = *config.experts;
  return std::make_unique<const Experts>(
      loader, layer_name + "." + std::string(extras.experts_name),
      ExpertsOptions{.hidden_size = config.hidden_size,
                     .intermediate_size = experts.intermediate_size,
                     .num_experts = experts.num_experts,
                     .num_chosen = experts.num_chosen,
                     .normalises_weights = experts.normalises_weights,
                     .canonical_shards = config.canonical_shards()},
      extras.expert_names);
}

DecoderLayer load_layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                        std::size_t layer, const AttentionOptions& attention,
                        const DecoderExtras& extras) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  RmsNorm input_norm(loader, name + ".input_layernorm", config.hidden_size, norm);
  auto attend = std::make_unique<const Attention>(loader, name + ".self_attn", attention);
  auto mlp = load_mlp(loader, name, config, layer, extras);
  RmsNorm mlp_norm(loader, name + ".post_attention_layernorm", config.hidden_size, norm);
  std::vector<NormedMixer> mixers;
  mixers.push_back({std::move(input_norm), std::move(attend), std::nullopt});
  mixers.push_back({std::move(mlp_norm), std::move(mlp), std::nullopt});
  return DecoderLayer(std::move(mixers));
}

}  // namespace

std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, const DecoderExtras& extras,
                                             std::unique_ptr<const ItemTower> tower) {
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention = attention_options(config, i, rope);
    attention.qkv_bias = extras.qkv_bias;
    attention.output_bias = extras.output_bias;
    attention.qk_norm = extras.qk_norm;
    layers.push_back(load_layer(loader, prefix + std::to_string(i), config, i, attention, extras));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = {.eps = config.rms_norm_eps}},
                                        std::move(tower));
}

}  // namespace troupe
