#pragma once
// The configurations of vision transformers (VisionConfig), for the readers of models that have
// one.

#include <string>

#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

// With the defaults of their classes, all layers and the norm behind them. Errors stay in
// `fields`: kCorrupt, kUnsupported.

/// siglip_vision_model (arXiv 2303.15343).
[[nodiscard]] VisionConfig read_siglip_config(ConfigFields& fields);
/// clip_vision_model (arXiv 2103.00020).
[[nodiscard]] VisionConfig read_clip_config(ConfigFields& fields);

/// An activation by one of its names in transformers.
[[nodiscard]] Gelu read_gelu(ConfigFields& fields, std::string_view key,
                             std::string_view otherwise);

/// The id that `name` has, with "_id" or "_index" behind it, of a vocabulary of so many tokens.
[[nodiscard]] TokenId read_token(ConfigFields& root, const std::string& name,
                                 std::int64_t otherwise, std::int64_t vocab_size);

}  // namespace troupe
