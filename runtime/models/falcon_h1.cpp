// Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side in each layer, with a multiplier
// wherever something is projected.

#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/mamba2_mixer.hpp"
#include "runtime/models/mixer_sum.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/state_space_config.hpp"

namespace troupe {
namespace {

constexpr DecoderNames kFalconH1Names = {.final_norm = "final_layernorm"};

/// A list of `count` multipliers; those of 1 where there is none.
std::vector<float> read_multipliers(ConfigFields& text, std::string_view key, std::size_t count) {
  std::vector<float> multipliers;
  for (const double number : text.numbers(key)) multipliers.push_back(static_cast<float>(number));
  if (text.has(key) && multipliers.size() != count)
    text.fail(ErrorCode::kCorrupt, std::string(key) + " has " + std::to_string(multipliers.size()) +
                                       " numbers, not " + std::to_string(count));
  multipliers.resize(count, 1.0f);
  return multipliers;
}

FalconMultipliers read_all_multipliers(ConfigFields& text) {
  const auto number = [&](std::string_view key) { return static_cast<float>(text.number(key, 1)); };
  const std::vector<float> mlp = read_multipliers(text, "mlp_multipliers", 2);
  return {.attention_in = number("attention_in_multiplier"),
          .attention_out = number("attention_out_multiplier"),
          .states_in = number("ssm_in_multiplier"),
          .states_out = number("ssm_out_multiplier"),
          .mlp_gate = mlp[0],
          .mlp_down = mlp[1]};
}

void read_falcon_h1_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 14336,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 128000,
              .num_kv_heads = 8,
              .max_positions = 8192,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
  config.embedding_scale = static_cast<float>(text.number("embedding_multiplier", 1));
  config.logit_scale = static_cast<float>(text.number("lm_head_multiplier", 1));
  // Keys go into scores alone.
  config.attention_scale *= static_cast<float>(text.number("key_multiplier", 1));
  config.falcon = read_all_multipliers(text);
  if (config.mlp_bias && config.falcon->mlp_gate != 1)
    text.fail(ErrorCode::kUnsupported, "mlp_bias is true beside mlp_multipliers of the gate");
  if (config.falcon->mlp_gate == 0)
    text.fail(ErrorCode::kUnsupported, "the first of mlp_multipliers is 0");

  const bool has_no_size = text.contains("mamba_d_ssm") && !text.has("mamba_d_ssm");
  const std::int64_t expanded = config.hidden_size * read_expansion(text, "mamba_expand");
  StateSpaceConfig states = read_state_space(
      text, {}, has_no_size ? expanded : text.integer("mamba_d_ssm", 1024, 1, kMaxConfigSize));
  states.out_bias = text.boolean("projectors_bias", false);
  states.has_norm = text.boolean("mamba_rms_norm", false);
  states.norm_before_gate = text.true_unless_null("mamba_norm_before_gate");
  states.norm_eps = config.rms_norm_eps;
  states.multipliers = read_multipliers(text, "ssm_multipliers", 5);
  states.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  config.state_space = std::move(states);
}

/// Attention and the state space of a layer have caches of their own, which are numbered in turns.
std::unique_ptr<const Mixer> load_mixers(WeightLoader& loader, const std::string& name,
                                         const ModelConfig& config, std::size_t layer,
                                         const std::shared_ptr<const RopeTables>& rope) {
  const FalconMultipliers& multipliers = *config.falcon;
  AttentionOptions attention = attention_options(config, layer, rope);
  attention.layer = 2 * layer;
  attention.qkv_bias = config.attention_bias;
  attention.output_bias = config.attention_output_bias;
  std::vector<MixerSum::Part> parts;
  parts.push_back({std::make_unique<const Attention>(loader, name + ".self_attn", attention),
                   multipliers.attention_in, multipliers.attention_out});
  parts.push_back({std::make_unique<const Mamba2Mixer>(
                       loader, name + ".mamba",
                       Mamba2Options{.layer = 2 * layer + 1,
                                     .hidden_size = config.hidden_size,
                                     .config = *config.state_space,
                                     .canonical_shards = config.canonical_shards()}),
                   multipliers.states_in, multipliers.states_out});
  return std::make_unique<const MixerSum>(config.hidden_size, std::move(parts));
}

std::unique_ptr<Model> make_falcon_h1(const ModelConfig& config, Device& device,
                                      WeightLoader& loader) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  const FalconMultipliers& multipliers = *config.falcon;
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t layer : layers_to_load(config, loader)) {
    const std::string name = prefix + std::to_string(layer);
    std::vector<NormedMixer> mixers;
    RmsNorm before_mixers(loader, name + ".input_layernorm", config.hidden_size, norm);
    mixers.push_back(
        {std::move(before_mixers), load_mixers(loader, name, config, layer, rope), std::nullopt});
    // The gate's multiplier is one of its input, which `up` has as well: it is divided out behind.
    RmsNorm before_mlp(loader, name + ".pre_ff_layernorm", config.hidden_size, norm);
    std::vector<MixerSum::Part> mlp;
    mlp.push_back({std::make_unique<const GatedMlp>(
                       loader, name + ".feed_forward", config.hidden_size, config.intermediate_size,
                       config.canonical_shards(), Activation::kSilu, config.mlp_bias),
                   multipliers.mlp_gate, multipliers.mlp_down / multipliers.mlp_gate});
    mixers.push_back({std::move(before_mlp),
                      std::make_unique<const MixerSum>(config.hidden_size, std::move(mlp)),
                      std::nullopt});
    layers.emplace_back(std::move(mixers));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm,
                                                       .embedding_scale = config.embedding_scale,
                                                       .logit_scale = config.logit_scale,
                                                       .names = kFalconH1Names});
}

/// The converter multiplies the weights by the multipliers. llama.cpp norms behind the gate.
void add_falcon_h1_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                               nlohmann::json& config) {
  const GgufStateSpace states = read_gguf_state_space(metadata, prefix);
  config["mamba_d_ssm"] = states.inner_size;
  add_mamba_fields(states, config);
  config["mamba_norm_before_gate"] = false;
}

constexpr GgufRenaming kFalconH1GgufTensors[] = {
    {"ssm_in.", "mamba.in_proj."},
    {"ssm_conv1d.", "mamba.conv1d.", GgufShape::kConvolution},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.A", GgufShape::kVector},
    {"ssm_d", "mamba.D", GgufShape::kVector},
    {"ssm_norm.", "mamba.norm.", GgufShape::kVector},
    {"ssm_out.", "mamba.out_proj."},
    {"ffn_norm.", "pre_ff_layernorm."},
    {"ffn_norm", "pre_ff_layernorm.weight"},  // in most files
    {"ffn_gate.", "feed_forward.gate_proj."},
    {"ffn_up.", "feed_forward.up_proj."},
    {"ffn_down.", "feed_forward.down_proj."}};
constexpr GgufRenaming kFalconH1GgufOutside[] = {{"output_norm.", "model.final_layernorm."}};
constexpr GgufArchitecture kFalconH1Gguf = {.name = "falcon-h1",
                                            .keys = kGgufStateSpaceKeys,
                                            .tensors = kFalconH1GgufTensors,
                                            .outside = kFalconH1GgufOutside,
                                            .add_config = add_falcon_h1_gguf_config};

}  // namespace

extern const RegisteredArchitecture kFalconH1 = {.name = "FalconH1ForCausalLM",
                                                 .model_type = "falcon_h1",
                                                 .read_config = read_falcon_h1_config,
                                                 .gguf = &kFalconH1Gguf,
                                                 .make = make_falcon_h1};

}  // namespace troupe
