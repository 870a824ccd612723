#include "runtime/models/decoder_config.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/ops.hpp"
#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxPositions = 1 << 28;

/// Some functions have several names.
bool are_same_activation(std::string_view name, std::string_view supported) {
  constexpr std::string_view kTanhNames[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast",
                                             "gelu_accurate", "gelu_python_tanh"};
  if (name == supported || (name == "swish" && supported == "silu")) return true;
  return supported == "gelu_pytorch_tanh" &&
         std::ranges::find(kTanhNames, name) != std::end(kTanhNames);
}

/// layer_types: which layers have the window. Nothing if it is not given, or wrong.
std::optional<std::vector<bool>> read_layer_types(ConfigFields& text, const ModelConfig& config) {
  if (!text.has("layer_types")) return std::nullopt;
  const std::vector<std::string> types = text.texts("layer_types");
  if (std::cmp_not_equal(types.size(), config.num_layers)) {
    text.fail(ErrorCode::kCorrupt, "layer_types has " + std::to_string(types.size()) +
                                       " entries for " + std::to_string(config.num_layers) +
                                       " layers");
    return std::nullopt;
  }
  std::vector<bool> windowed;
  for (const std::string& type : types) {
    windowed.push_back(type == "sliding_attention");
    if (!windowed.back() && type != "full_attention" && type != "attention")
      text.fail(ErrorCode::kUnsupported, "layer type " + type + " is not supported");
  }
  return windowed;
}

}  // namespace

void read_sizes(ConfigFields& text, bool is_gguf, const SizeDefaults& defaults,
                ModelConfig& config) {
  const auto size = [&](std::string_view key, std::optional<std::int64_t> otherwise) {
    return text.integer(key, otherwise, 1, kMaxConfigSize);
  };
  config.hidden_size = size("hidden_size", defaults.hidden_size);
  config.intermediate_size = size("intermediate_size", defaults.intermediate_size);
  config.num_layers = text.integer("num_hidden_layers", defaults.num_layers, 1, kMaxConfigLayers);
  config.num_heads = size("num_attention_heads", defaults.num_heads);
  // Null says that no heads are shared.
  const bool shares_none = text.contains("num_key_value_heads") && !text.has("num_key_value_heads");
  config.num_kv_heads =
      size("num_key_value_heads",
           shares_none ? config.num_heads : defaults.num_kv_heads.value_or(config.num_heads));
  config.head_dim = size("head_dim", defaults.head_dim.value_or(std::max<std::int64_t>(
                                         1, config.hidden_size / config.num_heads)));
  if (config.head_dim > kMaxHeadDim)
    text.fail(ErrorCode::kUnsupported, "head_dim is " + std::to_string(config.head_dim) +
                                           ", at most " + std::to_string(kMaxHeadDim) +
                                           " is supported");
  config.vocab_size = size("vocab_size", defaults.vocab_size);
  config.max_model_len =
      text.integer("max_position_embeddings", defaults.max_positions, 1, kMaxPositions);
  config.rms_norm_eps = static_cast<float>(text.number("rms_norm_eps", defaults.rms_norm_eps));
  config.attention_bias = text.boolean("attention_bias", false);
  config.attention_output_bias =
      is_gguf ? text.boolean("attention_output_bias", false) : config.attention_bias;
  config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
  if (config.num_heads % config.num_kv_heads != 0)
    text.fail(ErrorCode::kCorrupt, "num_attention_heads is " + std::to_string(config.num_heads) +
                                       ", not a multiple of num_key_value_heads, " +
                                       std::to_string(config.num_kv_heads));
}

void check_activation(ConfigFields& text, std::string_view key, std::string_view supported,
                      const ModelConfig& config) {
  const std::string activation = text.text(key, supported);
  if (!are_same_activation(activation, supported))
    text.fail(ErrorCode::kUnsupported,
              "activation " + activation + " is not supported for " + config.architecture);
}

std::int32_t read_window(ConfigFields& text, std::int64_t otherwise) {
  if (text.contains("sliding_window") && !text.has("sliding_window")) return 0;
  return static_cast<std::int32_t>(text.integer("sliding_window", otherwise, 1, kMaxPositions));
}

void set_equal_windows(ConfigFields& text, std::int32_t window, ModelConfig& config) {
  config.sliding_windows.assign(static_cast<std::size_t>(config.num_layers), window);
  // transformers would keep a cache of one kind and attend as if it were of the other.
  if (text.has("attention_chunk_size"))
    text.fail(ErrorCode::kUnsupported, "attention_chunk_size is not supported");
  const auto types = read_layer_types(text, config);
  if (types && std::ranges::find(*types, window == 0) != types->end())
    text.fail(
        ErrorCode::kUnsupported,
        std::string("layer_types has ") + (window == 0 ? "sliding_attention" : "full_attention") +
            ", which " + config.architecture +
            (window == 0 ? " without a sliding_window" : " with a sliding_window") + " has not");
}

void set_no_windows(ConfigFields& text, ModelConfig& config) {
  const std::int32_t window = text.has("sliding_window") ? read_window(text, 0) : 0;
  if (window != 0 && window < config.max_model_len)
    text.fail(ErrorCode::kUnsupported, "sliding_window is " + std::to_string(window) + ", " +
                                           config.architecture + " has none");
  set_equal_windows(text, 0, config);
}

std::vector<bool> windows_by_pattern(std::int64_t num_layers, std::int64_t pattern) {
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < num_layers; ++layer)
    windowed.push_back((layer + 1) % pattern != 0);
  return windowed;
}

void set_layer_windows(ConfigFields& text, std::int32_t window, std::vector<bool> windowed,
                       ModelConfig& config) {
  windowed = read_layer_types(text, config).value_or(std::move(windowed));
  config.sliding_windows.clear();
  for (std::size_t layer = 0; layer < windowed.size(); ++layer) {
    config.sliding_windows.push_back(windowed[layer] ? window : 0);
    if (windowed[layer] && window == 0)
      text.fail(ErrorCode::kUnsupported, "layer " + std::to_string(layer) +
                                             " has a window, but sliding_window is not "
                                             "given or not used");
  }
}

bool add_layer_types(GgufMetadata& metadata, const std::string& prefix, bool has_windows,
                     json& config) {
  const std::string pattern = prefix + "attention.sliding_window_pattern";
  if (!metadata.is_list(pattern)) return false;
  config["layer_types"] = json::array();
  for (const double has_window : metadata.numbers(pattern))
    config["layer_types"].push_back(has_window != 0 && has_windows ? "sliding_attention"
                                                                   : "full_attention");
  return true;
}

void read_qwen_windows(ConfigFields& text, ModelConfig& config) {
  const std::int32_t window =
      text.boolean("use_sliding_window", false) ? read_window(text, 4096) : 0;
  const std::int64_t first = text.integer("max_window_layers", 28, 0, INT32_MAX);
  std::vector<bool> windowed(static_cast<std::size_t>(config.num_layers), window != 0);
  std::fill_n(windowed.begin(), std::min(first, config.num_layers), false);
  set_layer_windows(text, window, std::move(windowed), config);
}

ExpertsConfig read_experts(ConfigFields& text, const ExpertCounts& defaults) {
  constexpr std::int64_t kMaxExperts = 1 << 12;
  ExpertsConfig experts;
  experts.num_experts =
      text.integer_of(defaults.key, defaults.other_key, defaults.num_experts, 1, kMaxExperts);
  experts.num_chosen = text.integer("num_experts_per_tok", defaults.num_chosen, 1, kMaxExperts);
  if (experts.num_chosen > experts.num_experts)
    text.fail(ErrorCode::kCorrupt, "num_experts_per_tok is " + std::to_string(experts.num_chosen) +
                                       ", there are " + std::to_string(experts.num_experts) +
                                       " experts");
  return experts;
}

ExpertsConfig read_grouped_experts(ConfigFields& text, const ModelConfig& config,
                                   const GroupedExperts& family) {
  ExpertsConfig experts = read_experts(text, family.counts);
  experts.intermediate_size =
      text.integer("moe_intermediate_size", family.intermediate_size, 1, kMaxConfigSize);
  experts.shared_size =
      experts.intermediate_size * text.integer("n_shared_experts", family.num_shared, 0, 1024);
  experts.is_sigmoid = family.is_sigmoid;
  experts.sums_two_best = family.is_sigmoid;
  experts.weight_scale =
      static_cast<float>(text.number("routed_scaling_factor", family.weight_scale));
  const std::int64_t dense =
      text.integer("first_k_dense_replace", family.num_dense_layers, 0, kMaxConfigLayers);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    experts.layers.push_back(layer >= dense);
  if (!family.has_groups) return experts;
  experts.num_groups = text.integer("n_group", family.num_groups, 1, kMaxExpertGroups);
  experts.num_chosen_groups =
      text.integer("topk_group", family.num_chosen_groups, 1, kMaxExpertGroups);
  const std::int64_t group_size = experts.num_experts / experts.num_groups;
  if (experts.num_experts % experts.num_groups != 0 || group_size < (experts.sums_two_best ? 2 : 1))
    text.fail(ErrorCode::kCorrupt, "n_group is " + std::to_string(experts.num_groups) + " for " +
                                       std::to_string(experts.num_experts) + " experts");
  if (experts.num_chosen_groups > experts.num_groups ||
      experts.num_chosen > experts.num_chosen_groups * group_size)
    text.fail(ErrorCode::kCorrupt, "topk_group is " + std::to_string(experts.num_chosen_groups) +
                                       " of " + std::to_string(experts.num_groups) + " groups of " +
                                       std::to_string(group_size) + ", for " +
                                       std::to_string(experts.num_chosen) + " experts of a token");
  return experts;
}

void add_grouped_experts(GgufMetadata& metadata, const std::string& prefix, json& config) {
  config["n_routed_experts"] = config["num_experts"];
  config["moe_intermediate_size"] =
      metadata.integer(prefix + "expert_feed_forward_length", std::nullopt);
  config["n_shared_experts"] = metadata.integer(prefix + "expert_shared_count", 0);
  config["first_k_dense_replace"] = metadata.integer(prefix + "leading_dense_block_count", 0);
  config["n_group"] = metadata.integer(prefix + "expert_group_count", 1);
  config["topk_group"] = metadata.integer(prefix + "expert_group_used_count", 1);
  config["routed_scaling_factor"] = metadata.number(prefix + "expert_weights_scale", 1);
  config["norm_topk_prob"] = metadata.boolean(prefix + "expert_weights_norm", false);
}

bool scores_by_sigmoid(GgufMetadata& metadata, const std::string& prefix, bool otherwise) {
  constexpr std::int64_t kSoftmax = 1;
  constexpr std::int64_t kSigmoid = 2;
  return metadata.integer(prefix + "expert_gating_func", otherwise ? kSigmoid : kSoftmax) ==
         kSigmoid;
}

void read_shared_rope(ConfigFields& text, bool is_gguf, const RopeFamily& family,
                      ModelConfig& config) {
  const auto trained = static_cast<double>(config.max_model_len);
  config.rope = parse_rope(text, family, config.max_model_len);
  if (is_gguf) parse_rope_divisors(text, config.rope);
  config.sliding_rope = config.rope;
  // A scaled model was made for more positions than it was trained on at first; where the length
  // in config.json is the trained one, the factor extends it.
  double extended = 0;
  if (config.rope.kind == RopeKind::kLinear || config.rope.kind == RopeKind::kDynamic)
    extended = trained * config.rope.factor;
  if (config.rope.kind == RopeKind::kYarn)
    extended = static_cast<double>(config.rope.original_max_positions) * config.rope.factor;
  config.max_model_len =
      static_cast<std::int64_t>(std::clamp(extended, trained, static_cast<double>(kMaxPositions)));
}

float read_softcap(ConfigFields& text, std::string_view key, double otherwise) {
  if (text.contains(key) && !text.has(key)) return 0;
  return read_positive(text, key, otherwise);
}

float read_positive(ConfigFields& text, std::string_view key, double otherwise) {
  const double number = text.number(key, otherwise);
  if (!(number > 0 && std::isfinite(number)))
    text.fail(ErrorCode::kCorrupt,
              std::string(key) + " is " + json(number).dump() + ", not a number above 0");
  return static_cast<float>(number);
}

}  // namespace troupe
