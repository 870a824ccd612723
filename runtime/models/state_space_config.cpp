#include "runtime/models/state_space_config.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kDefaultHeads = 128;
constexpr std::int64_t kDefaultHeadDim = 64;

std::int64_t read_head_dim(ConfigFields& text, const StateSpaceKeys& keys, std::int64_t inner_size,
                           std::int64_t num_heads) {
  const std::int64_t otherwise =
      keys.has_auto_head_dim ? std::max<std::int64_t>(1, inner_size / num_heads) : kDefaultHeadDim;
  if (keys.has_auto_head_dim && text.is_text(keys.head_dim)) {
    const std::string name = text.text(keys.head_dim, "auto");
    if (name != "auto")
      text.fail(ErrorCode::kCorrupt,
                std::string(keys.head_dim) + " is " + name + ", neither a number nor auto");
    return otherwise;
  }
  return text.integer(keys.head_dim, otherwise, 1, kMaxConfigSize);
}

void read_time_step_limit(ConfigFields& text, StateSpaceConfig& states) {
  if (!text.has("time_step_limit")) return;
  const std::vector<double> limits = text.numbers("time_step_limit");
  if (limits.size() != 2 || !(limits[0] <= limits[1]))
    return text.fail(ErrorCode::kCorrupt,
                     "time_step_limit is not a smallest and a largest time step");
  states.min_dt = static_cast<float>(limits[0]);
  states.max_dt = static_cast<float>(limits[1]);
}

}  // namespace

StateSpaceConfig read_state_space(ConfigFields& text, const StateSpaceKeys& keys,
                                  std::int64_t inner_size) {
  StateSpaceConfig states;
  states.num_heads = text.integer(keys.num_heads, kDefaultHeads, 1, kMaxConfigSize);
  states.head_dim = read_head_dim(text, keys, inner_size, states.num_heads);
  states.state_size = text.integer(keys.state_size, keys.default_state_size, 1, kMaxConfigSize);
  states.num_groups = text.integer(keys.num_groups, keys.default_groups, 1, kMaxConfigSize);
  states.conv_width = text.integer(keys.conv_width, 4, 1, kMaxConfigSize);
  states.conv_bias = text.true_unless_null(keys.conv_bias);
  states.in_bias = text.boolean(keys.bias, false);
  states.out_bias = states.in_bias;
  read_time_step_limit(text, states);
  if (states.conv_width < 2 || states.conv_width > kMaxConvWidth)
    text.fail(ErrorCode::kUnsupported, std::string(keys.conv_width) + " is " +
                                           std::to_string(states.conv_width) +
                                           ", supported are 2 to " + std::to_string(kMaxConvWidth));
  if (states.num_heads * states.head_dim != inner_size)
    text.fail(ErrorCode::kCorrupt,
              std::string(keys.num_heads) + " " + std::to_string(states.num_heads) + " times " +
                  std::string(keys.head_dim) + " " + std::to_string(states.head_dim) + " is not " +
                  std::to_string(inner_size) + ", the size of all heads");
  if (states.num_heads % states.num_groups != 0)
    text.fail(ErrorCode::kCorrupt, std::string(keys.num_heads) + " is " +
                                       std::to_string(states.num_heads) + ", not a multiple of " +
                                       std::string(keys.num_groups) + ", " +
                                       std::to_string(states.num_groups));
  return states;
}

GgufStateSpace read_gguf_state_space(GgufMetadata& metadata, const std::string& prefix) {
  const auto size = [&](const char* key) {
    const std::int64_t value = metadata.integer(prefix + "ssm." + key, std::nullopt);
    if (value <= 0)
      metadata.fail(ErrorCode::kCorrupt, "metadata \"" + prefix + "ssm." + key + "\" is " +
                                             std::to_string(value) + ", not a positive number");
    return std::max<std::int64_t>(1, value);
  };
  GgufStateSpace states{.inner_size = size("inner_size"),
                        .num_heads = size("time_step_rank"),
                        .state_size = size("state_size"),
                        .num_groups = size("group_count"),
                        .conv_width = size("conv_kernel")};
  states.head_dim = states.inner_size / states.num_heads;
  return states;
}

void add_mamba_fields(const GgufStateSpace& states, nlohmann::json& config) {
  config["mamba_n_heads"] = states.num_heads;
  config["mamba_d_head"] = states.head_dim;
  config["mamba_d_state"] = states.state_size;
  config["mamba_n_groups"] = states.num_groups;
  config["mamba_d_conv"] = states.conv_width;
}

std::int64_t read_expansion(ConfigFields& text, std::string_view key) {
  return text.integer(key, 2, 1, 1 << 10);
}

}  // namespace troupe
