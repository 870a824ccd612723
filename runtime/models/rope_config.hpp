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

/// Whether heads of head_dim elements can be rotated so: theta is above 1, and the share of a head
/// is a whole number of pairs. Errors go to `fields`: kCorrupt, kUnsupported.
void check_rope(ConfigFields& fields, const RopeConfig& rope, std::int64_t head_dim);

}  // namespace troupe
