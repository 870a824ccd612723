// SmolLM3 (Hugging Face): Llama, with layers in between whose q and k are not rotated (NoPE, arXiv
// 2501.18795).

#include <string>
#include <utility>

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

/// no_rope_layers is 0 for layers that are not rotated; without it every interval-th is not.
std::vector<bool> read_unrotated(ConfigFields& text, const ModelConfig& config) {
  std::vector<bool> is_unrotated;
  if (text.has("no_rope_layers")) {
    for (const double rotates : text.numbers("no_rope_layers"))
      is_unrotated.push_back(rotates == 0);
    if (std::cmp_not_equal(is_unrotated.size(), config.num_layers))
      text.fail(ErrorCode::kCorrupt, "no_rope_layers has " + std::to_string(is_unrotated.size()) +
                                         " entries for " + std::to_string(config.num_layers) +
                                         " layers");
    is_unrotated.resize(static_cast<std::size_t>(config.num_layers));
    return is_unrotated;
  }
  const std::int64_t interval = text.integer("no_rope_layer_interval", 4, 1, kMaxConfigLayers);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    is_unrotated.push_back((layer + 1) % interval == 0);
  return is_unrotated;
}

void read_smollm3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.num_kv_heads = 4, .max_positions = 32768}, config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  config.is_unrotated = read_unrotated(text, config);
  const bool has_window = text.boolean("use_sliding_window", false) && text.has("sliding_window");
  const std::int32_t window = has_window ? read_window(text, 0) : 0;
  std::vector<bool> windowed(config.is_unrotated.size());
  if (window != 0) windowed = config.is_unrotated;
  set_layer_windows(text, window, std::move(windowed), config);
  read_shared_rope(text, is_gguf, 2e6, config);
}

std::unique_ptr<Model> make_smollm3(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

constexpr GgufArchitecture kSmollm3Gguf = {.name = "smollm3", .interleaves_heads = true};

}  // namespace

extern const RegisteredArchitecture kSmolLm3 = {.name = "SmolLM3ForCausalLM",
                                                .model_type = "smollm3",
                                                .ties_embeddings = true,
                                                .read_config = read_smollm3_config,
                                                .gguf = &kSmollm3Gguf,
                                                .make = make_smollm3};

}  // namespace troupe
