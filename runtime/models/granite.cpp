// Granite 3 (IBM): Llama, with multipliers of embeddings, attention scores, what blocks add to the
// residual stream, and logits.

#include <cmath>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_granite_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.max_positions = 2048}, config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
  config.attention_scale = read_positive(text, "attention_multiplier", 1);
  config.embedding_scale = read_positive(text, "embedding_multiplier", 1);
  config.residual_scale = read_positive(text, "residual_multiplier", 1);
  config.logit_scale = 1 / read_positive(text, "logits_scaling", 1);
}

std::unique_ptr<Model> make_granite(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

/// A scale that is 0 is none, and so is one that is not given.
void add_granite_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config) {
  const auto scale = [&](const char* key, const char* name) {
    const double number = metadata.number(prefix + key, 0);
    if (number != 0) config[name] = number;
  };
  scale("attention.scale", "attention_multiplier");
  scale("embedding_scale", "embedding_multiplier");
  scale("residual_scale", "residual_multiplier");
  config["logits_scaling"] = metadata.number(prefix + "logit_scale", std::nullopt);
  if (!config.contains("attention_multiplier"))
    config["attention_multiplier"] = 1 / std::sqrt(config["head_dim"].get<double>());
  // In files of this architecture the key says whether heads are rotated.
  const std::string rotates = prefix + "rope.scaling.finetuned";
  if (!metadata.boolean(rotates, true))
    metadata.fail(ErrorCode::kUnsupported,
                  "metadata \"" + rotates + "\" is false, which is not supported");
}

constexpr std::string_view kGraniteGgufKeys[] = {"attention.scale", "embedding_scale",
                                                 "residual_scale", "logit_scale"};
constexpr GgufArchitecture kGraniteGguf = {.name = "granite",
                                           .interleaves_heads = true,
                                           .has_rope_divisors = true,
                                           .keys = kGraniteGgufKeys,
                                           .add_config = add_granite_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGranite = {.name = "GraniteForCausalLM",
                                                .model_type = "granite",
                                                .read_config = read_granite_config,
                                                .gguf = &kGraniteGguf,
                                                .make = make_granite};

}  // namespace troupe
