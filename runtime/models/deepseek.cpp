// DeepSeek: multi-head latent attention, and behind the first layers experts beside shared ones.
// V2 (arXiv 2405.04434) chooses them by softmax; V3 and R1 (arXiv 2412.19437) in groups, by biased
// sigmoid scores.

#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

/// A field that other implementations follow and transformers does not, with its only value here.
template <class T>
void expect(ConfigFields& text, std::string_view key, const T& found, const T& expected) {
  if (found == expected) return;
  text.fail(ErrorCode::kUnsupported, std::string(key) + " is " + nlohmann::json(found).dump() +
                                         ", only " + nlohmann::json(expected).dump() +
                                         " is supported");
}

LatentConfig read_latent(ConfigFields& text) {
  const auto size = [&](std::string_view key, std::int64_t otherwise) {
    return text.integer(key, otherwise, 1, kMaxConfigSize);
  };
  const bool has_no_q_rank = text.contains("q_lora_rank") && !text.has("q_lora_rank");
  LatentConfig latent{.q_rank = has_no_q_rank ? 0 : size("q_lora_rank", 1536),
                      .kv_rank = size("kv_lora_rank", 512),
                      .plain_dim = size("qk_nope_head_dim", 128),
                      .rotary_dim = size("qk_rope_head_dim", 64),
                      .value_dim = size("v_head_dim", 128)};
  if (latent.kv_rank > kMaxHeadDim)
    text.fail(ErrorCode::kUnsupported, "kv_lora_rank is " + std::to_string(latent.kv_rank) +
                                           ", at most " + std::to_string(kMaxHeadDim) +
                                           " is supported");
  if (latent.kv_rank + latent.rotary_dim > kMaxLatentKeyDim)
    text.fail(ErrorCode::kUnsupported, "kv_lora_rank and qk_rope_head_dim are together " +
                                           std::to_string(latent.kv_rank + latent.rotary_dim) +
                                           ", at most " + std::to_string(kMaxLatentKeyDim) +
                                           " is supported");
  return latent;
}

/// What yarn multiplies scores by: its factor of cos and sin is in the rotated part alone.
double score_factor(ConfigFields& text, const RopeConfig& rope) {
  if (rope.kind == RopeKind::kDefault) return 1;
  const nlohmann::json* scaling = text.object("rope_scaling");
  if (scaling == nullptr || scaling->empty()) scaling = text.object("rope_parameters");
  if (scaling == nullptr) return 1;
  ConfigFields fields(*scaling, text.where() + ": rope_scaling");
  const double mscale = fields.number("mscale_all_dim", 0);
  if (fields.error()) text.fail(fields.error()->code, "mscale_all_dim is not a number");
  if (mscale == 0 || rope.factor <= 1) return 1;
  const double factor = 0.1 * mscale * std::log(rope.factor) + 1;
  return factor * factor;
}

/// What other implementations read of the routing.
void check_routing(ConfigFields& text, const std::string& scoring) {
  expect<std::string>(text, "scoring_func", text.text("scoring_func", scoring), scoring);
  expect<std::int64_t>(text, "moe_layer_freq",
                       text.integer("moe_layer_freq", 1, 1, kMaxConfigLayers), 1);
}

/// Sizes and attention. is_interleaved: of the rotation.
void read_attention(ConfigFields& text, bool is_gguf, const SizeDefaults& defaults,
                    bool is_interleaved, ModelConfig& config) {
  read_sizes(text, is_gguf, defaults, config);
  check_activation(text, "hidden_act", "silu", config);
  expect<std::int64_t>(text, "num_key_value_heads", config.num_kv_heads, config.num_heads);
  config.latent = read_latent(text);
  config.head_dim = config.latent->rotary_dim;
  read_shared_rope(text, is_gguf, {.pairs_neighbours = is_interleaved}, config);
  set_no_windows(text, config);
  const auto query_dim = static_cast<double>(config.latent->plain_dim + config.latent->rotary_dim);
  config.attention_scale =
      static_cast<float>(score_factor(text, config.rope) / std::sqrt(query_dim));
}

void read_deepseek_v2_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_attention(text, is_gguf,
                 {.hidden_size = 4096,
                  .intermediate_size = 11008,
                  .num_layers = 32,
                  .num_heads = 32,
                  .vocab_size = 102400,
                  .max_positions = 2048},
                 /*is_interleaved=*/true, config);
  if (text.boolean("mlp_bias", false))
    text.fail(ErrorCode::kUnsupported, "mlp_bias is not supported");
  const std::string method = text.text("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    text.fail(ErrorCode::kUnsupported,
              "topk_method is " + method + ", only greedy and group_limited_greedy are supported");
  if (!text.has("num_experts_per_tok"))
    text.fail(ErrorCode::kCorrupt, "num_experts_per_tok is missing");
  config.experts = read_grouped_experts(text, config,
                                        {.is_sigmoid = false,
                                         .has_groups = method == "group_limited_greedy",
                                         .counts = {.key = "n_routed_experts",
                                                    .other_key = "num_experts",
                                                    .num_experts = 64,
                                                    .num_chosen = 1},
                                         .intermediate_size = 1407,
                                         .num_shared = 2});
  expect<bool>(text, "norm_topk_prob", text.boolean("norm_topk_prob", false), false);
  check_routing(text, "softmax");
}

void read_deepseek_v3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_attention(text, is_gguf,
                 {.hidden_size = 7168,
                  .intermediate_size = 18432,
                  .num_layers = 61,
                  .num_heads = 128,
                  .vocab_size = 129280,
                  .num_kv_heads = 128,
                  .max_positions = 4096},
                 text.true_unless_null("rope_interleave"), config);
  config.experts = read_grouped_experts(text, config,
                                        {.counts = {.key = "n_routed_experts",
                                                    .other_key = "num_local_experts",
                                                    .num_experts = 256,
                                                    .num_chosen = 8},
                                         .intermediate_size = 2048,
                                         .num_dense_layers = 3,
                                         .weight_scale = 2.5,
                                         .num_groups = 8,
                                         .num_chosen_groups = 4});
  config.experts->normalises_weights = text.true_unless_null("norm_topk_prob");
  expect<std::string>(text, "topk_method", text.text("topk_method", "noaux_tc"), "noaux_tc");
  check_routing(text, "sigmoid");
}

std::unique_ptr<Model> make_deepseek_v2(const ModelConfig& config, Device& device,
                                        WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader, {.shared_name = "shared_experts"});
}

std::unique_ptr<Model> make_deepseek_v3(const ModelConfig& config, Device& device,
                                        WeightLoader& loader) {
  ignore_mtp_layers(config, loader);
  return make_pre_norm_decoder(
      config, device, loader,
      {.choice_bias_name = "gate.e_score_correction_bias", .shared_name = "shared_experts"});
}

/// llama.cpp has both under one name.
bool is_v3_file(GgufMetadata& metadata, const std::string& prefix) {
  return scores_by_sigmoid(metadata, prefix, /*otherwise=*/false);
}

/// Of latents. llama.cpp says by what it multiplies scores, and undoes the factor of cos and sin.
void add_deepseek_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                              nlohmann::json& config) {
  const auto integer = [&](const char* key) {
    return metadata.integer(prefix + key, std::nullopt);
  };
  const std::int64_t rotary_dim = integer("rope.dimension_count");
  const std::int64_t key_length = config["head_dim"].get<std::int64_t>();
  const std::int64_t value_length = metadata.integer(prefix + "attention.value_length", key_length);
  config["num_key_value_heads"] = config["num_attention_heads"];
  config["kv_lora_rank"] = integer("attention.kv_lora_rank");
  config["q_lora_rank"] = nullptr;
  if (metadata.has(prefix + "attention.q_lora_rank"))
    config["q_lora_rank"] = integer("attention.q_lora_rank");
  config["qk_rope_head_dim"] = rotary_dim;
  config["qk_nope_head_dim"] =
      metadata.integer(prefix + "attention.key_length_mla", key_length) - rotary_dim;
  config["v_head_dim"] = metadata.integer(prefix + "attention.value_length_mla", value_length);
  add_grouped_experts(metadata, prefix, config);
  const bool is_v3 = is_v3_file(metadata, prefix);
  config["scoring_func"] = is_v3 ? "sigmoid" : "softmax";
  if (!is_v3) config["topk_method"] = config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
  nlohmann::json& rope = config["rope_parameters"];
  if (rope["rope_type"] != "yarn") return;
  rope.erase("attention_factor");
  const double multiplier = metadata.number(prefix + "rope.scaling.yarn_log_multiplier", 0);
  // It is stored as f32, a tenth of a number with few digits.
  const double mscale = std::round(multiplier * 1e6) / 1e5;
  if (mscale != 0) rope["mscale"] = rope["mscale_all_dim"] = mscale;
}

constexpr std::string_view kDeepseekGgufKeys[] = {
    "rope.dimension_count",       "rope.scaling.yarn_log_multiplier",
    "attention.kv_lora_rank",     "attention.q_lora_rank",
    "attention.key_length_mla",   "attention.value_length",
    "attention.value_length_mla", "expert_feed_forward_length",
    "expert_shared_count",        "leading_dense_block_count",
    "expert_group_count",         "expert_group_used_count",
    "expert_weights_scale",       "expert_weights_norm",
    "expert_gating_func"};
constexpr GgufRenaming kDeepseekGgufTensors[] = {
    {"attn_q_a.", "self_attn.q_a_proj."},
    {"attn_q_a_norm.", "self_attn.q_a_layernorm."},
    {"attn_q_b.", "self_attn.q_b_proj."},
    {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."},
    {"attn_kv_a_norm.", "self_attn.kv_a_layernorm."},
    {"attn_kv_b.", "self_attn.kv_b_proj."},
    {"attn_k_b.", "self_attn.k_b_proj.*."},
    {"attn_v_b.", "self_attn.v_b_proj.*."},
    {"ffn_gate_inp.", "mlp.gate."},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.*.up_proj."},
    {"ffn_down_exps.", "mlp.experts.*.down_proj."},
    {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_experts.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_experts.down_proj."}};
constexpr GgufArchitecture kDeepseekV2Gguf = {
    .name = "deepseek2",
    .has_experts = true,
    .matches = [](GgufMetadata& metadata,
                  const std::string& prefix) { return !is_v3_file(metadata, prefix); },
    .keys = kDeepseekGgufKeys,
    .tensors = kDeepseekGgufTensors,
    .add_config = add_deepseek_gguf_config};
constexpr GgufArchitecture kDeepseekV3Gguf = {.name = "deepseek2",
                                              .has_experts = true,
                                              .matches = is_v3_file,
                                              .keys = kDeepseekGgufKeys,
                                              .tensors = kDeepseekGgufTensors,
                                              .add_config = add_deepseek_gguf_config};

}  // namespace

extern const RegisteredArchitecture kDeepseekV2 = {.name = "DeepseekV2ForCausalLM",
                                                   .model_type = "deepseek_v2",
                                                   .read_config = read_deepseek_v2_config,
                                                   .gguf = &kDeepseekV2Gguf,
                                                   .make = make_deepseek_v2};

extern const RegisteredArchitecture kDeepseekV3 = {.name = "DeepseekV3ForCausalLM",
                                                   .model_type = "deepseek_v3",
                                                   .read_config = read_deepseek_v3_config,
                                                   .gguf = &kDeepseekV3Gguf,
                                                   .make = make_deepseek_v3};

}  // namespace troupe
