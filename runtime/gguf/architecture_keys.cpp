#include <algorithm>
#include <string_view>

#include "runtime/gguf/architecture.hpp"

namespace troupe {
namespace {

/// Read by gguf_config_json.
constexpr std::string_view kRead[] = {"context_length",
                                      "embedding_length",
                                      "block_count",
                                      "feed_forward_length",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.layer_norm_rms_epsilon",
                                      "rope.freq_base",
                                      "rope.scale_linear",
                                      "rope.scaling.type",
                                      "rope.scaling.factor",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.yarn_attn_factor",
                                      "rope.scaling.yarn_ext_factor",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow"};

/// Read where heads may be rotated in part.
constexpr std::string_view kRotatedSize = "rope.dimension_count";

constexpr std::string_view kReadOfExperts[] = {"expert_count", "expert_used_count"};

/// Notes about the file, or keys that llama.cpp ignores in text generation.
constexpr std::string_view kHarmless[] = {"vocab_size",  // the shape of the embedding has it
                                          "rope.scaling.finetuned", "tensor_data_layout",
                                          "attention.layer_norm_epsilon", "pooling_type"};

/// Neutral if equal to the head size, or to the context length.
constexpr std::string_view kHeadSizes[] = {"attention.value_length", "rope.dimension_count",
                                           "attention.key_length_swa", "attention.value_length_swa",
                                           "rope.dimension_count_swa"};

/// Neutral if 0 or false: the feature is then off.
constexpr std::string_view kOffWithZero[] = {"expert_count",
                                             "expert_used_count",
                                             "expert_shared_count",
                                             "leading_dense_block_count",
                                             "nextn_predict_layers",
                                             "attention.clamp_kqv",
                                             "attention.max_alibi_bias",
                                             "attention.scale",
                                             "attention.shared_kv_layers",
                                             "attention.temperature_length",
                                             "attention.temperature_scale",
                                             "attention.sliding_window",
                                             "attn_logit_softcapping",
                                             "final_logit_softcapping",
                                             "rope.scaling.yarn_log_multiplier",
                                             "use_parallel_residual",
                                             "swin_norm"};

/// Multipliers: neutral if 1, or 0 (same as absent).
constexpr std::string_view kMultipliers[] = {"embedding_scale", "residual_scale", "logit_scale"};

bool has(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// Whether the result would be the same without this key, which is not read.
bool changes_nothing(GgufMetadata& metadata, const std::string& key, std::string_view name,
                     std::int64_t head_dim) {
  if (has(kHarmless, name)) return true;
  if (has(kHeadSizes, name)) return metadata.is_number(key, static_cast<double>(head_dim));
  if (has(kOffWithZero, name)) return metadata.is_number(key, 0);
  if (has(kMultipliers, name)) return metadata.is_number(key, 0) || metadata.is_number(key, 1);
  return name == "attention.causal" && metadata.is_number(key, 1);
}

}  // namespace

void check_architecture_keys(GgufMetadata& metadata, const GgufArchitecture& architecture,
                             std::int64_t head_dim) {
  const std::string prefix = std::string(architecture.name) + ".";
  for (const std::string& key : metadata.keys_with(prefix)) {
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (has(kRead, name) || has(architecture.keys, name)) continue;
    if (architecture.has_experts && has(kReadOfExperts, name)) continue;
    if (architecture.rotates_part && name == kRotatedSize) continue;
    if (changes_nothing(metadata, key, name, head_dim)) continue;
    return metadata.fail(
        ErrorCode::kUnsupported,
        "metadata \"" + key + "\" is " + metadata.shown(key) + ", which is not supported");
  }
}

}  // namespace troupe
