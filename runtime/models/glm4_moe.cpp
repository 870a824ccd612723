// GLM-4.5 to 4.7 (arXiv 2508.06471): a part of each head is rotated, by halves, and behind the
// first layers experts are chosen as in DeepSeek-V3.

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_glm4_moe_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 10944,
              .num_layers = 46,
              .num_heads = 96,
              .vocab_size = 151552,
              .num_kv_heads = 8,
              .max_positions = 131072,
              .rms_norm_eps = 1e-5},
             config);
  config.qk_norm = text.boolean("use_qk_norm", false);
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf, {.rotates_part = true, .default_part = 0.5}, config);
  set_no_windows(text, config);
  config.experts = read_grouped_experts(text, config,
                                        {.counts = {.key = "n_routed_experts",
                                                    .other_key = "num_local_experts",
                                                    .num_experts = 128,
                                                    .num_chosen = 8},
                                         .intermediate_size = 1408,
                                         .num_dense_layers = 1});
  config.experts->normalises_weights = text.boolean("norm_topk_prob", true);
}

std::unique_ptr<Model> make_glm4_moe(const ModelConfig& config, Device& device,
                                     WeightLoader& loader) {
  ignore_mtp_layers(config, loader);
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .qk_norm = config.qk_norm,
                                .choice_bias_name = "gate.e_score_correction_bias",
                                .shared_name = "shared_experts"});
}

/// The file's layers include those that guess further tokens.
void add_glm4_moe_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                              nlohmann::json& config) {
  config["num_hidden_layers"] = config["num_hidden_layers"].get<std::int64_t>() -
                                metadata.integer(prefix + "nextn_predict_layers", 0);
  add_grouped_experts(metadata, prefix, config);
  if (!scores_by_sigmoid(metadata, prefix, /*otherwise=*/true))
    metadata.fail(ErrorCode::kUnsupported, "metadata \"" + prefix + "expert_gating_func\" is " +
                                               metadata.shown(prefix + "expert_gating_func") +
                                               ", which is not supported");
}

constexpr std::string_view kGlm4MoeGgufKeys[] = {
    "nextn_predict_layers",      "expert_feed_forward_length", "expert_shared_count",
    "leading_dense_block_count", "expert_group_count",         "expert_group_used_count",
    "expert_weights_scale",      "expert_weights_norm",        "expert_gating_func"};
constexpr GgufRenaming kGlm4MoeGgufTensors[] = {
    {"post_attention_norm.", "post_attention_layernorm."},
    {"ffn_gate_inp.", "mlp.gate."},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.*.up_proj."},
    {"ffn_down_exps.", "mlp.experts.*.down_proj."},
    {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_experts.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_experts.down_proj."},
    {"nextn.eh_proj.", "eh_proj."},
    {"nextn.enorm.", "enorm."},
    {"nextn.hnorm.", "hnorm."},
    {"nextn.embed_tokens.", "embed_tokens."},
    {"nextn.shared_head_head.", "shared_head.head."},
    {"nextn.shared_head_norm.", "shared_head.norm."}};
constexpr GgufArchitecture kGlm4MoeGguf = {.name = "glm4moe",
                                           .has_experts = true,
                                           .rotates_part = true,
                                           .keys = kGlm4MoeGgufKeys,
                                           .tensors = kGlm4MoeGgufTensors,
                                           .add_config = add_glm4_moe_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGlm4Moe = {.name = "Glm4MoeForCausalLM",
                                                .model_type = "glm4_moe",
                                                .read_config = read_glm4_moe_config,
                                                .gguf = &kGlm4MoeGguf,
                                                .make = make_glm4_moe};

}  // namespace troupe
