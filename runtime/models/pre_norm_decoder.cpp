#include "runtime/models/pre_norm_decoder.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/models/experts.hpp"
#include "runtime/models/latent_attention.hpp"

namespace troupe {
namespace {

ExpertsOptions experts_options(const ModelConfig& config, const DecoderExtras& extras) {
  const ExpertsConfig& experts = *config.experts;
  return {.num_experts = experts.num_experts,
          .routing = {.num_chosen = experts.num_chosen,
                      .is_sigmoid = experts.is_sigmoid,
                      .normalises_weights = experts.normalises_weights,
                      .weight_scale = experts.weight_scale,
                      .scales_input = experts.scales_input,
                      .num_groups = experts.num_groups,
                      .num_chosen_groups = experts.num_chosen_groups,
                      .sums_two_best = experts.sums_two_best},
          .expert = {.hidden_size = config.hidden_size,
                     .intermediate_size = experts.intermediate_size,
                     .canonical_shards = config.canonical_shards(),
                     .activation = extras.activation,
                     .clamp = config.swish_clamp,
                     .has_bias = extras.expert_bias},
          .router_name = extras.router_name,
          .router_bias = extras.router_bias,
          .choice_bias_name = extras.choice_bias_name,
          .expert_names = extras.expert_names,
          .expert_parts = extras.expert_parts,
          .stack = extras.expert_stack};
}

/// What stands behind the attention of a layer.
std::unique_ptr<const Mixer> load_mlp(WeightLoader& loader, const std::string& layer_name,
                                      const ModelConfig& config, std::size_t layer,
                                      const DecoderExtras& extras) {
  if (!config.experts || !config.experts->layers[layer])
    return std::make_unique<const GatedMlp>(loader, layer_name + "." + std::string(extras.mlp_name),
                                            config.hidden_size, config.intermediate_size,
                                            config.canonical_shards(), extras.activation,
                                            config.mlp_bias, extras.mlp_names);
  const std::string name = layer_name + "." + std::string(extras.experts_name);
  const ExpertsOptions options = experts_options(config, extras);
  if (config.experts->shared_size == 0)
    return std::make_unique<const Experts>(loader, name, options);
  return std::make_unique<const ExpertsWithShared>(
      loader, name, options,
      SharedExpertOptions{.intermediate_size = config.experts->shared_size,
                          .name = extras.shared_name,
                          .gate_name = extras.shared_gate_name});
}

std::unique_ptr<const Mixer> load_attention(WeightLoader& loader, const std::string& name,
                                            const ModelConfig& config,
                                            const AttentionOptions& options) {
  if (!config.latent) return std::make_unique<const Attention>(loader, name, options);
  return std::make_unique<const LatentAttention>(
      loader, name,
      LatentAttentionOptions{.layer = options.layer,
                             .hidden_size = config.hidden_size,
                             .num_heads = config.num_heads,
                             .latent = *config.latent,
                             .scale = config.attention_scale,
                             .has_bias = config.attention_bias,
                             .canonical_shards = config.canonical_shards(),
                             .rope = options.rope});
}

/// As the reference computes them, in f32.
std::vector<float> query_scales(const QueryScaling& scaling, std::int64_t num_positions) {
  std::vector<float> scales(static_cast<std::size_t>(num_positions));
  for (std::size_t position = 0; position < scales.size(); ++position) {
    const float intervals =
        std::floor((static_cast<float>(position) + 1) / static_cast<float>(scaling.interval));
    scales[position] = std::log1p(intervals) * static_cast<float>(scaling.scale) + 1;
  }
  return scales;
}

}  // namespace

DecoderLayer load_pre_norm_layer(WeightLoader& loader, const std::string& name,
                                 const ModelConfig& config, std::size_t layer,
                                 const AttentionOptions& attention, const DecoderExtras& extras) {
  const auto norm = [&](std::string_view norm_name) -> std::optional<RmsNorm> {
    if (norm_name.empty()) return std::nullopt;
    return RmsNorm(loader, name + "." + std::string(norm_name), config.hidden_size, attention.norm);
  };
  std::optional<RmsNorm> before_attention = norm(extras.norm_names.before_attention);
  auto attend = load_attention(loader, name + ".self_attn", config, attention);
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

std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, const DecoderExtras& extras,
                                             std::unique_ptr<const ItemTower> tower) {
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const auto sliding_rope =
      config.sliding_rope == config.rope
          ? rope
          : loader.rope_tables(config.sliding_rope, config.head_dim, config.max_model_len);
  const NormStyle norm{.eps = config.rms_norm_eps, .weight_offset = extras.norm_weight_offset};
  std::shared_ptr<const DeviceArray<float>> q_scales;
  if (config.query_scaling)
    q_scales = std::make_shared<const DeviceArray<float>>(
        loader.upload(query_scales(*config.query_scaling, config.max_model_len)));
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    const bool is_rotated = config.is_unrotated.empty() || !config.is_unrotated[i];
    const auto& rotation = config.sliding_windows[i] > 0 ? sliding_rope : rope;
    AttentionOptions attention = attention_options(config, i, is_rotated ? rotation : nullptr);
    if (!is_rotated) attention.q_scales = q_scales;
    attention.norms_rotated = is_rotated && config.norms_rotated;
    attention.has_sinks = extras.has_sinks;
    attention.qkv_bias = extras.qkv_bias;
    attention.output_bias = extras.output_bias;
    attention.qk_norm = extras.qk_norm;
    attention.whole_qk_norm = extras.whole_qk_norm;
    attention.norm = norm;
    attention.names = extras.attention_names;
    layers.push_back(
        load_pre_norm_layer(loader, prefix + std::to_string(i), config, i, attention, extras));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm,
                                                       .embedding_scale = config.embedding_scale,
                                                       .logit_scale = config.logit_scale,
                                                       .logit_softcap = config.logit_softcap},
                                        std::move(tower));
}

}  // namespace troupe
