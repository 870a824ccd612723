#pragma once
// The rotary part of config.json. See RopeConfig.

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

// Read as transformers 5 does (modeling_rope_utils.py), or refused.

/// The lengths that scaled rotations are relative to.
struct RopeLengths {
  std::int64_t trained = 0;              ///< max_position_embeddings
  std::optional<std::int64_t> original;  ///< given beside the parameters, and before theirs
};

/// The parameters of a family with a single rotation.
struct RopeFamily {
  double default_theta = 1e4;
  bool rotates_part = false;  ///< partial_rotary_factor is followed; else whole heads are rotated
  double default_part = 1;
  bool overrides_part = false;    ///< default_part, whatever stands beside the parameters
  bool pairs_neighbours = false;  ///< RopeConfig::pairs_neighbours
  /// Phi-3: the types "su" and "yarn" are longrope, which is the only one that scales.
  bool scales_by_longrope_alone = false;
  std::optional<std::int64_t> default_original = std::nullopt;  ///< the original length
};

/// Of families with one rotation: rope_scaling, or else rope_parameters; what these do not say of
/// rope_theta and of the original length stands beside them. Errors go to `fields`: kUnsupported
/// (rope type, a member per layer type, a base that would be lost), kCorrupt.
[[nodiscard]] RopeConfig parse_rope(ConfigFields& fields, const RopeFamily& family,
                                    std::int64_t trained_positions);

/// A rotation of Gemma 3 or OLMo 3, which have one for each type of layer.
struct LayerRope {
  std::string_view type;  ///< the member of rope_parameters
  /// Beside them: the base where they give none; empty: there is none.
  std::string_view theta_key = {};
  double default_theta = 0;
  bool takes_scaling = false;  ///< rope_scaling adds to it
};
/// What else stands in rope_parameters says nothing. Errors as above.
[[nodiscard]] RopeConfig parse_layer_rope(ConfigFields& fields, const LayerRope& layer,
                                          std::int64_t trained_positions);

/// What GGUF files have besides. Errors: kCorrupt.
void parse_rope_divisors(ConfigFields& fields, RopeConfig& rope);

/// Whether heads of head_dim elements can be rotated so: theta is above 1, and a head is a whole
/// number of pairs. Errors go to `fields`: kCorrupt, kUnsupported.
void check_rope(ConfigFields& fields, const RopeConfig& rope, std::int64_t head_dim);

}  // namespace troupe
