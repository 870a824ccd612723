#pragma once
// Parts of config.json that several families have, for their readers (registry.hpp). Read as
// transformers 5 does. Errors go to the fields: kCorrupt, kUnsupported.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/metadata.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/rope_config.hpp"

namespace troupe {

inline constexpr std::int64_t kMaxConfigSize = 1 << 24;  ///< of one dimension
inline constexpr std::int64_t kMaxConfigLayers = 1 << 12;

/// What a family's configuration class assumes where config.json is silent. Sizes without a default
/// must be given.
struct SizeDefaults {
  std::optional<std::int64_t> hidden_size, intermediate_size, num_layers, num_heads, vocab_size;
  std::optional<std::int64_t> num_kv_heads;  ///< none: num_heads
  std::optional<std::int64_t> head_dim;      ///< none: hidden_size / num_heads
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
};
/// Sizes, the norms' epsilon, whether attention has biases, and its usual scale.
void read_sizes(ConfigFields& text, bool is_gguf, const SizeDefaults& defaults,
                ModelConfig& config);

/// The activation of the MLP must be the family's, by one of its names.
void check_activation(ConfigFields& text, std::string_view key, std::string_view supported,
                      const ModelConfig& config);

/// sliding_window; 0 if it is null, which is none.
[[nodiscard]] std::int32_t read_window(ConfigFields& text, std::int64_t otherwise);
/// The windows of families whose layers are all of one type.
void set_equal_windows(ConfigFields& text, std::int32_t window, ModelConfig& config);
/// Of families whose layers have none. Pre: read_shared_rope has told the longest text.
void set_no_windows(ConfigFields& text, ModelConfig& config);
/// That every pattern-th layer has none.
[[nodiscard]] std::vector<bool> windows_by_pattern(std::int64_t num_layers, std::int64_t pattern);
/// Those of families whose layer_types may say which layers have the window; or else `windowed`,
/// the family's own rule, does.
void set_layer_windows(ConfigFields& text, std::int32_t window, std::vector<bool> windowed,
                       ModelConfig& config);
/// Adds layer_types, by a GGUF file's list of the layers with a window; `has_windows`: otherwise
/// none has. False: the file has no list.
bool add_layer_types(GgufMetadata& metadata, const std::string& prefix, bool has_windows,
                     nlohmann::json& config);
/// Qwen: use_sliding_window says whether, max_window_layers from which layer on.
void read_qwen_windows(ConfigFields& text, ModelConfig& config);

/// How many experts there are, under one of two keys, and are chosen. The rest of ExpertsConfig is
/// the family's.
struct ExpertCounts {
  std::string_view key;        ///< of the configuration class
  std::string_view other_key;  ///< which transformers takes for the same; empty: none
  std::int64_t num_experts = 0;
  std::int64_t num_chosen = 0;
};
[[nodiscard]] ExpertsConfig read_experts(ConfigFields& text, const ExpertCounts& defaults);

/// DeepSeek's mixtures: experts beside shared ones, in all layers but the first.
struct GroupedExperts {
  bool is_sigmoid = true;  ///< scores, and groups by their two best ones; else softmax, by the best
  bool has_groups = true;
  // Defaults:
  ExpertCounts counts;
  std::int64_t intermediate_size = 0;  ///< of one expert
  std::int64_t num_shared = 1;
  std::int64_t num_dense_layers = 0;
  double weight_scale = 1;
  std::int64_t num_groups = 1;
  std::int64_t num_chosen_groups = 1;
};
/// All but whether weights are normalised.
[[nodiscard]] ExpertsConfig read_grouped_experts(ConfigFields& text, const ModelConfig& config,
                                                 const GroupedExperts& family);
/// The fields that it reads, of a GGUF file, and norm_topk_prob. Pre: `config` has num_experts.
void add_grouped_experts(GgufMetadata& metadata, const std::string& prefix, nlohmann::json& config);
/// How a GGUF file's experts are scored; `otherwise`: where it does not say.
[[nodiscard]] bool scores_by_sigmoid(GgufMetadata& metadata, const std::string& prefix,
                                     bool otherwise);

/// One rotation for all layers; a scaled one may lengthen the context.
void read_shared_rope(ConfigFields& text, bool is_gguf, const RopeFamily& family,
                      ModelConfig& config);
inline void read_shared_rope(ConfigFields& text, bool is_gguf, double default_theta,
                             ModelConfig& config) {
  read_shared_rope(text, is_gguf, {.default_theta = default_theta}, config);
}

/// A number that must be above 0.
[[nodiscard]] float read_positive(ConfigFields& text, std::string_view key, double otherwise);
/// The same, where null is 0, which is none.
[[nodiscard]] float read_softcap(ConfigFields& text, std::string_view key, double otherwise);

}  // namespace troupe
