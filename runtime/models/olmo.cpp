// OLMo 2 (arXiv 2501.00656): Llama, with norms behind the blocks in place of those before them, and
// one norm on all heads of q, and of k. OLMo 3 (arXiv 2512.13961) has a sliding window in most
// layers, whose rotation is not scaled.

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_olmo2_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.max_positions = 2048, .rms_norm_eps = 1e-5}, config);
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
}

void read_olmo3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  constexpr double kTheta = 5e5;
  constexpr std::int64_t kPattern = 4;
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 11008,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 50304,
              .max_positions = 2048,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  set_layer_windows(text, read_window(text, 4096), windows_by_pattern(config.num_layers, kPattern),
                    config);
  config.rope = parse_layer_rope(text,
                                 {.type = "full_attention",
                                  .theta_key = "rope_theta",
                                  .default_theta = kTheta,
                                  .takes_scaling = true},
                                 config.max_model_len);
  // As transformers has it, the base beside them is that of the other layers alone.
  config.sliding_rope = parse_layer_rope(
      text, {.type = "sliding_attention", .default_theta = kTheta}, config.max_model_len);
}

std::unique_ptr<Model> make_olmo(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .whole_qk_norm = true,
                                .norm_names = {.before_attention = {},
                                               .after_attention = "post_attention_layernorm",
                                               .before_mlp = {},
                                               .after_mlp = "post_feedforward_layernorm"}});
}

/// llama.cpp has both under one name.
bool has_windows(GgufMetadata& metadata, const std::string& prefix) {
  return metadata.integer(prefix + "attention.sliding_window", 0) != 0;
}

void add_olmo3_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                           nlohmann::json& config) {
  config["sliding_window"] = metadata.integer(prefix + "attention.sliding_window", std::nullopt);
  add_layer_types(metadata, prefix, /*has_windows=*/true, config);
  nlohmann::json& rope = config["rope_parameters"];
  const double theta =
      metadata.number(prefix + "rope.freq_base_swa", rope["rope_theta"].get<double>());
  config["rope_parameters"] = {{"full_attention", rope},
                               {"sliding_attention", {{"rope_theta", theta}}}};
}

constexpr std::string_view kOlmo3GgufKeys[] = {
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"};
constexpr GgufRenaming kOlmoGgufTensors[] = {{"post_attention_norm.", "post_attention_layernorm."},
                                             {"post_ffw_norm.", "post_feedforward_layernorm."}};
constexpr GgufArchitecture kOlmo2Gguf = {
    .name = "olmo2",
    .matches = [](GgufMetadata& metadata,
                  const std::string& prefix) { return !has_windows(metadata, prefix); },
    .tensors = kOlmoGgufTensors};
constexpr GgufArchitecture kOlmo3Gguf = {.name = "olmo2",
                                         .matches = has_windows,
                                         .keys = kOlmo3GgufKeys,
                                         .tensors = kOlmoGgufTensors,
                                         .add_config = add_olmo3_gguf_config};

}  // namespace

extern const RegisteredArchitecture kOlmo2 = {.name = "Olmo2ForCausalLM",
                                              .model_type = "olmo2",
                                              .read_config = read_olmo2_config,
                                              .gguf = &kOlmo2Gguf,
                                              .make = make_olmo};

extern const RegisteredArchitecture kOlmo3 = {.name = "Olmo3ForCausalLM",
                                              .model_type = "olmo3",
                                              .read_config = read_olmo3_config,
                                              .gguf = &kOlmo3Gguf,
                                              .make = make_olmo};

}  // namespace troupe
