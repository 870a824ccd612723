// EXAONE 4 (arXiv 2507.11407): norms behind the blocks, and on each head of q and k; where most
// layers have a sliding window, the others do not rotate.

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_exaone4_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 16384,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 102400,
              .num_kv_heads = 32,
              .max_positions = 2048,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  const std::int32_t window = read_window(text, 4096);
  // With layer_types it may be a text.
  const bool follows_pattern = !text.has("layer_types") && window != 0;
  const std::int64_t pattern =
      follows_pattern ? text.integer("sliding_window_pattern", 4, 1, kMaxConfigLayers) : 1;
  set_layer_windows(text, window, windows_by_pattern(config.num_layers, pattern), config);
  for (const std::int32_t own : config.sliding_windows)
    config.is_unrotated.push_back(window != 0 && own == 0);
  read_shared_rope(text, is_gguf, 1e4, config);
}

std::unique_ptr<Model> make_exaone4(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qk_norm = true,
                                .norm_names = {.before_attention = {},
                                               .after_attention = "post_attention_layernorm",
                                               .before_mlp = {},
                                               .after_mlp = "post_feedforward_layernorm"}});
}

void add_exaone4_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config) {
  const std::string window = prefix + "attention.sliding_window";
  config["sliding_window"] = nullptr;
  if (!metadata.has(window)) return;
  config["sliding_window"] = metadata.integer(window, std::nullopt);
  add_layer_types(metadata, prefix, /*has_windows=*/true, config);
}

constexpr std::string_view kExaone4GgufKeys[] = {"attention.sliding_window",
                                                 "attention.sliding_window_pattern"};
constexpr GgufRenaming kExaone4GgufTensors[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."}};
constexpr GgufArchitecture kExaone4Gguf = {.name = "exaone4",
                                           .has_rope_divisors = true,
                                           .keys = kExaone4GgufKeys,
                                           .tensors = kExaone4GgufTensors,
                                           .add_config = add_exaone4_gguf_config};

}  // namespace

extern const RegisteredArchitecture kExaone4 = {.name = "Exaone4ForCausalLM",
                                                .model_type = "exaone4",
                                                .read_config = read_exaone4_config,
                                                .gguf = &kExaone4Gguf,
                                                .make = make_exaone4};

}  // namespace troupe
