// Bamba (IBM, Princeton, CMU, UIUC): layers of Mamba-2, a few of attention between them, and an MLP
// behind each.

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/granite_config.hpp"
#include "runtime/models/mamba2_mixer.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/state_space_config.hpp"

namespace troupe {
namespace {

constexpr DecoderNames kBambaNames = {.final_norm = "final_layernorm"};

void read_bamba_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 14336,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 128000,
              .num_kv_heads = 8,
              .max_positions = 262144,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf,
                   {.rotates_part = true, .default_part = 0.5, .overrides_part = true}, config);
  set_no_windows(text, config);
  StateSpaceConfig states =
      read_state_space(text, {}, config.hidden_size * read_expansion(text, "mamba_expand"));
  states.norm_eps = config.rms_norm_eps;
  states.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  // Transformers passes over an index that no layer has.
  for (const std::int64_t layer : text.integers("attn_layer_indices"))
    if (layer >= 0 && layer < config.num_layers)
      states.layers[static_cast<std::size_t>(layer)] = false;
  config.state_space = std::move(states);
}

std::unique_ptr<Model> make_bamba(const ModelConfig& config, Device& device, WeightLoader& loader) {
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
                      std::nullopt});
    RmsNorm before_mlp(loader, name + ".pre_ff_layernorm", config.hidden_size, norm);
    mixers.push_back(
        {std::move(before_mlp),
         std::make_unique<const GatedMlp>(loader, name + ".feed_forward", config.hidden_size,
                                          config.intermediate_size, config.canonical_shards(),
                                          Activation::kSilu, config.mlp_bias),
         std::nullopt});
    layers.emplace_back(std::move(mixers));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm, .names = kBambaNames});
}

void add_bamba_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                           nlohmann::json& config) {
  if (!rotates_granite_heads(metadata, prefix))
    metadata.fail(ErrorCode::kUnsupported, "metadata \"" + prefix +
                                               "rope.scaling.finetuned\" is false, which is not "
                                               "supported for Bamba");
  const GgufStateSpace states = read_gguf_state_space(metadata, prefix);
  const auto hidden_size = std::max<std::int64_t>(1, config["hidden_size"].get<std::int64_t>());
  config["mamba_expand"] = states.inner_size / hidden_size;
  add_mamba_fields(states, config);
  config["rope_parameters"]["partial_rotary_factor"] = config["partial_rotary_factor"];
  config["attn_layer_indices"] = nlohmann::json::array();
  std::int64_t layer = 0;
  for (const double num_kv_heads : metadata.numbers(prefix + "attention.head_count_kv")) {
    if (num_kv_heads > 0) config["attn_layer_indices"].push_back(layer);
    ++layer;
  }
}

constexpr GgufRenaming kBambaGgufTensors[] = {
    {"ssm_in.", "mamba.in_proj."},
    {"ssm_conv1d.", "mamba.conv1d.", GgufShape::kConvolution},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.A", GgufShape::kVector},
    {"ssm_d", "mamba.D", GgufShape::kVector},
    {"ssm_norm.", "mamba.norm.", GgufShape::kVector},
    {"ssm_out.", "mamba.out_proj."},
    {"ffn_norm.", "pre_ff_layernorm."},
    {"ffn_gate.", "feed_forward.gate_proj."},
    {"ffn_up.", "feed_forward.up_proj."},
    {"ffn_down.", "feed_forward.down_proj."}};
constexpr GgufRenaming kBambaGgufOutside[] = {{"output_norm.", "model.final_layernorm."}};
/// llama.cpp has Bamba and Granite 4 under one name.
constexpr GgufArchitecture kBambaGguf = {
    .name = "granitehybrid",
    .matches = [](GgufMetadata& metadata,
                  const std::string& prefix) { return !has_granite_multipliers(metadata, prefix); },
    .interleaves_heads = true,
    .rotates_part = true,
    .keys = kGgufStateSpaceKeys,
    .tensors = kBambaGgufTensors,
    .outside = kBambaGgufOutside,
    .add_config = add_bamba_gguf_config};

}  // namespace

extern const RegisteredArchitecture kBamba = {.name = "BambaForCausalLM",
                                              .model_type = "bamba",
                                              .read_config = read_bamba_config,
                                              .gguf = &kBambaGguf,
                                              .make = make_bamba};

}  // namespace troupe
