// Granite 4 (IBM): Granite's multipliers; layers of Mamba-2, and of attention that need not rotate;
// behind each an MLP, beside a mixture of experts or alone.

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/experts.hpp"
#include "runtime/models/granite_config.hpp"
#include "runtime/models/mamba2_mixer.hpp"
#include "runtime/models/mixer_sum.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/state_space_config.hpp"

namespace troupe {
namespace {

/// Whether each layer is a state space, under either of two names.
std::vector<bool> read_state_layers(ConfigFields& text, const ModelConfig& config) {
  const std::string key = text.has("layer_types") ? "layer_types" : "layers_block_type";
  if (!text.has(key)) return std::vector<bool>(static_cast<std::size_t>(config.num_layers), true);
  std::vector<bool> layers;
  for (const std::string& type : text.texts(key)) {
    layers.push_back(type == "mamba" || type == "linear_attention");
    if (!layers.back() && type != "attention" && type != "full_attention")
      text.fail(ErrorCode::kUnsupported, "layer type " + type + " is not supported");
  }
  if (std::cmp_not_equal(layers.size(), config.num_layers))
    text.fail(ErrorCode::kCorrupt, key + " has " + std::to_string(layers.size()) + " entries for " +
                                       std::to_string(config.num_layers) + " layers");
  layers.resize(static_cast<std::size_t>(config.num_layers));
  return layers;
}

void read_granite_hybrid_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 11008,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 32000,
              .max_positions = 2048},
             config);
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf, 1e4, config);
  config.is_unrotated.assign(static_cast<std::size_t>(config.num_layers),
                             text.text("position_embedding_type", "") != "rope");
  config.sliding_windows.assign(static_cast<std::size_t>(config.num_layers), 0);
  read_granite_multipliers(text, config);
  StateSpaceConfig states =
      read_state_space(text, {}, config.hidden_size * read_expansion(text, "mamba_expand"));
  states.norm_eps = config.rms_norm_eps;
  states.layers = read_state_layers(text, config);
  config.state_space = std::move(states);
  const std::int64_t shared_size =
      text.integer("shared_intermediate_size", 1024, 1, kMaxConfigSize);
  if (text.integer("num_local_experts", 8, 0, kMaxConfigSize) != 0) {
    ExpertsConfig experts =
        read_experts(text, {.key = "num_local_experts", .num_experts = 8, .num_chosen = 2});
    experts.intermediate_size = config.intermediate_size;
    experts.shared_size = shared_size;
    experts.normalises_weights = true;
    experts.layers.assign(static_cast<std::size_t>(config.num_layers), true);
    config.experts = std::move(experts);
  }
  config.intermediate_size = shared_size;
}

/// Stacked by experts; of each the gate's rows stand before those of `up`.
MlpParts granite_expert_parts(const WeightLoader& loader, const std::string& name,
                              const ExpertsOptions& options, std::int64_t expert) {
  if (loader.has(name + ".experts.0.gate_proj.weight"))  // as GGUF files are read
    return named_expert_parts(loader, name, options, expert);
  const std::int64_t hidden = options.expert.hidden_size;
  const std::int64_t inner = options.expert.intermediate_size;
  const auto part = [&](const char* matrix, std::int64_t stored_rows, std::int64_t first,
                        std::int64_t num_rows, std::int64_t num_cols) {
    WeightLoader::Part stored{name + "." + matrix, num_rows, {0, num_rows}};
    stored.layout = WeightLoader::Layout{.shape = {options.num_experts, stored_rows, num_cols},
                                         .first = (expert * stored_rows + first) * num_cols,
                                         .row_stride = num_cols};
    return stored;
  };
  return {part("input_linear", 2 * inner, 0, inner, hidden),
          part("input_linear", 2 * inner, inner, inner, hidden),
          part("output_linear", hidden, 0, hidden, inner)};
}

std::unique_ptr<const Mixer> load_mlp(WeightLoader& loader, const std::string& layer_name,
                                      const ModelConfig& config) {
  const std::string name = layer_name + ".shared_mlp";
  MlpNames names;  // as GGUF files are read
  if (loader.has(name + ".input_linear.weight"))
    names = {.down = "output_linear", .gate_up = "input_linear"};
  auto shared = std::make_unique<const GatedMlp>(
      loader, name, config.hidden_size, config.intermediate_size, config.canonical_shards(),
      Activation::kSilu, config.mlp_bias, names);
  if (!config.experts) return shared;
  const ExpertsConfig& experts = *config.experts;
  std::vector<MixerSum::Part> parts;
  parts.push_back({std::make_unique<const Experts>(
      loader, layer_name + ".block_sparse_moe",
      ExpertsOptions{.num_experts = experts.num_experts,
                     .routing = {.num_chosen = experts.num_chosen,
                                 .normalises_weights = experts.normalises_weights},
                     .expert = {.hidden_size = config.hidden_size,
                                .intermediate_size = experts.intermediate_size,
                                .canonical_shards = config.canonical_shards()},
                     .router_name = "router.layer",
                     .expert_parts = granite_expert_parts})});
  parts.push_back({std::move(shared)});
  return std::make_unique<const MixerSum>(config.hidden_size, std::move(parts));
}

std::unique_ptr<Model> make_granite_hybrid(const ModelConfig& config, Device& device,
                                           WeightLoader& loader) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t layer : layers_to_load(config, loader)) {
    const std::string name = prefix + std::to_string(layer);
    std::vector<NormedMixer> mixers;
    RmsNorm before_mixer(loader, name + ".input_layernorm", config.hidden_size, norm);
    mixers.push_back({std::move(before_mixer),
                      load_state_space_or_attention(loader, name, config, layer, rope),
                      std::nullopt, config.residual_scale});
    RmsNorm before_mlp(loader, name + ".post_attention_layernorm", config.hidden_size, norm);
    mixers.push_back({std::move(before_mlp), load_mlp(loader, name, config), std::nullopt,
                      config.residual_scale});
    layers.emplace_back(std::move(mixers));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm,
                                                       .embedding_scale = config.embedding_scale,
                                                       .logit_scale = config.logit_scale});
}

void add_granite_hybrid_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                                    nlohmann::json& config) {
  const GgufStateSpace states = read_gguf_state_space(metadata, prefix);
  const auto hidden_size = std::max<std::int64_t>(1, config["hidden_size"].get<std::int64_t>());
  config["mamba_expand"] = states.inner_size / hidden_size;
  add_mamba_fields(states, config);
  config["layer_types"] = nlohmann::json::array();
  for (const double num_kv_heads : metadata.numbers(prefix + "attention.head_count_kv"))
    config["layer_types"].push_back(num_kv_heads > 0 ? "attention" : "mamba");
  if (rotates_granite_heads(metadata, prefix)) config["position_embedding_type"] = "rope";
  add_granite_multipliers(metadata, prefix, config);
  const std::int64_t num_experts = metadata.integer(prefix + "expert_count", 0);
  config["num_local_experts"] = num_experts;
  config["shared_intermediate_size"] =
      metadata.integer(prefix + "expert_shared_feed_forward_length",
                       config["intermediate_size"].get<std::int64_t>());
  if (num_experts != 0)
    config["num_experts_per_tok"] = metadata.integer(prefix + "expert_used_count", std::nullopt);
}

constexpr std::string_view kGraniteHybridGgufKeys[] = {"ssm.conv_kernel",
                                                       "ssm.inner_size",
                                                       "ssm.state_size",
                                                       "ssm.time_step_rank",
                                                       "ssm.group_count",
                                                       "attention.scale",
                                                       "embedding_scale",
                                                       "residual_scale",
                                                       "logit_scale",
                                                       "rope.scaling.finetuned",
                                                       "expert_count",
                                                       "expert_used_count",
                                                       "expert_shared_feed_forward_length"};
constexpr GgufRenaming kGraniteHybridGgufTensors[] = {
    {"ssm_in.", "mamba.in_proj."},
    {"ssm_conv1d.", "mamba.conv1d.", GgufShape::kConvolution},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.A", GgufShape::kVector},
    {"ssm_d", "mamba.D", GgufShape::kVector},
    {"ssm_norm.", "mamba.norm.", GgufShape::kVector},
    {"ssm_out.", "mamba.out_proj."},
    {"ffn_gate_inp.", "block_sparse_moe.router.layer."},
    {"ffn_gate_exps.", "block_sparse_moe.experts.*.gate_proj."},
    {"ffn_up_exps.", "block_sparse_moe.experts.*.up_proj."},
    {"ffn_down_exps.", "block_sparse_moe.experts.*.down_proj."},
    {"ffn_gate_shexp.", "shared_mlp.gate_proj."},
    {"ffn_up_shexp.", "shared_mlp.up_proj."},
    {"ffn_down_shexp.", "shared_mlp.down_proj."},
    {"ffn_gate.", "shared_mlp.gate_proj."},
    {"ffn_up.", "shared_mlp.up_proj."},
    {"ffn_down.", "shared_mlp.down_proj."}};
constexpr GgufArchitecture kGraniteHybridGguf = {.name = "granitehybrid",
                                                 .matches = has_granite_multipliers,
                                                 .interleaves_heads = true,
                                                 .keys = kGraniteHybridGgufKeys,
                                                 .tensors = kGraniteHybridGgufTensors,
                                                 .add_config = add_granite_hybrid_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGraniteMoeHybrid = {.name = "GraniteMoeHybridForCausalLM",
                                                         .model_type = "granitemoehybrid",
                                                         .read_config = read_granite_hybrid_config,
                                                         .gguf = &kGraniteHybridGguf,
                                                         .make = make_granite_hybrid};

}  // namespace troupe
