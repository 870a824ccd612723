#pragma once
// The state space of config.json, for the readers of families that have one. Read as transformers 5
// does. Errors go to the fields: kCorrupt, kUnsupported.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/gguf/metadata.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// What a family calls the sizes, and what they are where config.json is silent.
struct StateSpaceKeys {
  std::string_view num_heads = "mamba_n_heads";
  std::string_view head_dim = "mamba_d_head";
  std::string_view state_size = "mamba_d_state";
  std::string_view num_groups = "mamba_n_groups";
  std::string_view conv_width = "mamba_d_conv";
  std::string_view conv_bias = "mamba_conv_bias";
  std::string_view bias = "mamba_proj_bias";  ///< of in_proj, and of out_proj
  std::int64_t default_groups = 1;
  std::int64_t default_state_size = 256;
  bool has_auto_head_dim = true;  ///< head_dim may be "auto", which is the default; else it is 64
};

/// inner_size: the columns of all heads. The layers that have it are the family's to say.
[[nodiscard]] StateSpaceConfig read_state_space(ConfigFields& text, const StateSpaceKeys& keys,
                                                std::int64_t inner_size);

/// What a GGUF file says of it.
struct GgufStateSpace {
  std::int64_t inner_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t state_size = 0;
  std::int64_t num_groups = 0;
  std::int64_t conv_width = 0;
};
[[nodiscard]] GgufStateSpace read_gguf_state_space(GgufMetadata& metadata,
                                                   const std::string& prefix);
/// As the mamba_* fields of config.json, but for the columns of all heads, which families call
/// differently.
void add_mamba_fields(const GgufStateSpace& states, nlohmann::json& config);
/// The keys that it reads.
inline constexpr std::string_view kGgufStateSpaceKeys[] = {
    "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"};

/// How many times the hidden size the heads have together, under one of these keys.
[[nodiscard]] std::int64_t read_expansion(ConfigFields& text, std::string_view key);

}  // namespace troupe
