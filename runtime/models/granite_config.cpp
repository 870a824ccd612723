#include "runtime/models/granite_config.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"

namespace troupe {

void read_granite_multipliers(ConfigFields& text, ModelConfig& config) {
  config.attention_scale = read_positive(text, "attention_multiplier", 1);
  config.embedding_scale = read_positive(text, "embedding_multiplier", 1);
  config.residual_scale = read_positive(text, "residual_multiplier", 1);
  config.logit_scale = 1 / read_positive(text, "logits_scaling", 1);
}

bool has_granite_multipliers(GgufMetadata& metadata, const std::string& prefix) {
  return std::ranges::any_of(kGraniteGgufKeys, [&](std::string_view key) {
    return metadata.has(prefix + std::string(key));
  });
}

/// A scale that is 0 is none, and so is one that is not given.
void add_granite_multipliers(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config) {
  const auto scale = [&](const char* key, const char* name) {
    const double number = metadata.number(prefix + key, 0);
    if (number != 0) config[name] = number;
  };
  scale("attention.scale", "attention_multiplier");
  scale("embedding_scale", "embedding_multiplier");
  scale("residual_scale", "residual_multiplier");
  scale("logit_scale", "logits_scaling");
  if (!config.contains("attention_multiplier"))
    config["attention_multiplier"] = 1 / std::sqrt(config["head_dim"].get<double>());
}

bool rotates_granite_heads(GgufMetadata& metadata, const std::string& prefix) {
  return metadata.boolean(prefix + "rope.scaling.finetuned", true);
}

}  // namespace troupe
