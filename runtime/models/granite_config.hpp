#pragma once
// The multipliers of IBM's Granite models, for the readers of families that have them. Errors go to
// the fields: kCorrupt.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/gguf/metadata.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// Of embeddings, attention scores, what blocks add to the residual stream, and logits.
void read_granite_multipliers(ConfigFields& text, ModelConfig& config);

/// What they are called in GGUF files.
inline constexpr std::string_view kGraniteGgufKeys[] = {"attention.scale", "embedding_scale",
                                                        "residual_scale", "logit_scale"};
/// Whether a GGUF file has any.
[[nodiscard]] bool has_granite_multipliers(GgufMetadata& metadata, const std::string& prefix);
/// As in config.json. Pre: `config` has head_dim.
void add_granite_multipliers(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config);
/// Whether a GGUF file's heads are rotated: files of these architectures say so by this key.
[[nodiscard]] bool rotates_granite_heads(GgufMetadata& metadata, const std::string& prefix);

}  // namespace troupe
