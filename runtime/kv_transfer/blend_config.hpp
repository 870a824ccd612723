#pragma once
// What configures the BlendConnector.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/connector_config.hpp"

namespace troupe {

inline constexpr const char* kBlendConnector = "BlendConnector";

/// How many tokens are recomputed although their keys and values are cached. At check_layers[i] the
/// fraction ratios[i] of a request's cached tokens is selected, those whose keys differ most from
/// the cached ones; or, with thresholds, those whose keys differ by more: the squared distance
/// relative to the squared norm of the key.
struct BlendRule {
  std::vector<std::int32_t> check_layers = {1};
  std::vector<double> ratios = {0.15};
  std::vector<double> thresholds = {};
};

struct BlendConfig {
  bool is_default = true;   ///< requests are blended that do not say anything about it
  std::string special_str;  ///< between the pieces of a prompt; empty: pieces end by their content
  std::int32_t min_tokens = 256;  ///< fewer cached ones are computed
  BlendRule rule;
  double max_local_cpu_size = 5;   ///< GiB per worker
  std::string local_disk;          ///< a folder that pieces are written to, too; empty: none
  double max_local_disk_size = 0;  ///< GiB per worker
  std::chrono::milliseconds load_timeout{10'000};  ///< of a piece from there
};

/// The names are LMCache's: enable_blending (true), blend_special_str (none), blend_min_tokens,
/// blend_check_layers, blend_recompute_ratios, blend_thresholds, max_local_cpu_size, local_disk,
/// max_local_disk_size; and load_timeout_s (10). Errors: kInvalidArgument naming the key.
[[nodiscard]] Result<BlendConfig> read_blend_config(const ConnectorConfig& config);

/// Of one request.
struct BlendParams {
  bool is_enabled = true;
  BlendRule rule;
};

/// What kv_transfer_params (a JSON object, or empty) say: enable_blending, blend_recompute_ratios,
/// blend_thresholds, each as above, or one number for all check layers. Errors: kInvalidArgument
/// naming the key.
[[nodiscard]] Result<BlendParams> read_blend_params(const BlendConfig& config,
                                                    const std::string& kv_transfer_params);

/// The text at which prompts are cut before they are tokenised, so that what stands between keeps
/// its tokens wherever it stands; empty: nowhere. Pre: read_blend_config, if it is the connector.
[[nodiscard]] std::string blend_separator(const ConnectorConfig& config);

}  // namespace troupe
