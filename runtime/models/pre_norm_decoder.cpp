#include "runtime/models/pre_norm_decoder.hpp"

#include <optional>
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
                                            extras.activation, config.mlp_bias, extras.mlp_names);
  const ExpertsConfig& experts = *config.experts;
  const std::string name = layer_name + "." + std::string(extras.experts_name);
  const ExpertsOptions options{.hidden_size = config.hidden_size,
                               .intermediate_size = experts.intermediate_size,
                               .num_experts = experts.num_experts,
                               .num_chosen = experts.num_chosen,
                               .normalises_weights = experts.normalises_weights,
                               .canonical_shards = config.canonical_shards()};
  if (experts.shared_size != 0)
    return std::make_unique<const ExpertsWithShared>(loader, name, options, extras.expert_names,
                                                     experts.shared_size);
  return std::make_unique<const Experts>(loader, name, options, extras.expert_names);
}

DecoderLayer load_layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                        std::size_t layer, const AttentionOptions& attention,
                        const DecoderExtras& extras) {
  const auto norm = [&](std::string_view norm_name) -> std::optional<RmsNorm> {
    if (norm_name.empty()) return std::nullopt;
    return RmsNorm(loader, name + "." + std::string(norm_name), config.hidden_size, attention.norm);
  };
  std::optional<RmsNorm> before_attention = norm(extras.norm_names.before_attention);
  auto attend = std::make_unique<const Attention>(loader, name + ".self_attn", attention);
  std::optional<RmsNorm> after_attention = norm(extras.norm_names.after_attention);
  auto mlp = load_mlp(loader, name, config, layer, extras);
  std::optional<RmsNorm> before_mlp = norm(extras.norm_names.before_mlp);
  std::optional<RmsNorm> after_mlp = norm(extras.norm_names.after_mlp);
  std::vector<NormedMixer> mixers;
  mixers.push_back({std::move(before_attention).value_or(RmsNorm()), std::move(attend),
                    std::move(after_attention), config.residual_scale});
  mixers.push_back({std::move(before_mlp).value_or(RmsNorm()), std::move(mlp), std::move(after_mlp),
                    config.residual_scale});
  return DecoderLayer(std::move(mixers));
}

}  // namespace

std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, const DecoderExtras& extras,
                                             std::unique_ptr<const ItemTower> tower) {
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const NormStyle norm{.eps = config.rms_norm_eps, .weight_offset = extras.norm_weight_offset};
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    const bool is_rotated = config.is_unrotated.empty() || !config.is_unrotated[i];
    AttentionOptions attention = attention_options(config, i, is_rotated ? rope : nullptr);
    attention.qkv_bias = extras.qkv_bias;
    attention.output_bias = extras.output_bias;
    attention.qk_norm = extras.qk_norm;
    attention.whole_qk_norm = extras.whole_qk_norm;
    attention.norm = norm;
    attention.names = extras.attention_names;
    layers.push_back(load_layer(loader, prefix + std::to_string(i), config, i, attention, extras));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm,
                                                       .embedding_scale = config.embedding_scale,
                                                       .logit_scale = config.logit_scale,
                                                       .logit_softcap = config.logit_softcap},
                                        std::move(tower));
}

}  // namespace troupe
