#pragma once
// The rotary part of config.json. See RopeConfig.

#include <cstdint>
#include <string_view>

#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// Reads rope_parameters (its member `layer_type` where it has one per layer type), or rope_theta
/// and rope_scaling. `trained_positions` stands in for an absent original length. Errors go to
/// `fields`: kUnsupported (rope type), kCorrupt.
[[nodiscard]] RopeConfig parse_rope(ConfigFields& fields, std::string_view layer_type,
                                    double default_theta, std::int64_t trained_positions);

}  // namespace troupe
