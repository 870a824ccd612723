// Qwen3 with experts (arXiv 2505.09388): in every decoder_sparse_step-th layer but those of
// mlp_only_layers they stand in the MLP's place.

#include <algorithm>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_qwen3_moe_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.num_kv_heads = 4, .max_positions = 32768}, config);
  check_activation(text, "hidden_act", "silu", config);
  // Unlike in Qwen3, all layers have the window.
  const bool has_window = text.boolean("use_sliding_window", false);
  set_equal_windows(text, has_window ? read_window(text, 4096) : 0, config);
  read_shared_rope(text, is_gguf, 1e4, config);
  ExpertsConfig experts = read_experts(text, {.key = "num_experts",
                                              .other_key = "num_local_experts",
                                              .num_experts = 128,
                                              .num_chosen = 8});
  experts.intermediate_size = text.integer("moe_intermediate_size", 768, 1, kMaxConfigSize);
  experts.normalises_weights = text.boolean("norm_topk_prob", false);
  const std::int64_t step = text.integer("decoder_sparse_step", 1, 1, kMaxConfigLayers);
  const std::vector<double> dense = text.numbers("mlp_only_layers");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    experts.layers.push_back((layer + 1) % step == 0 &&
                             std::ranges::find(dense, static_cast<double>(layer)) == dense.end());
  config.experts = std::move(experts);
}

std::unique_ptr<Model> make_qwen3_moe(const ModelConfig& config, Device& device,
                                      WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .qk_norm = true});
}

/// llama.cpp normalises the weights of such files, and has experts in every layer.
void add_qwen3_moe_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                               nlohmann::json& config) {
  config["moe_intermediate_size"] =
      metadata.integer(prefix + "expert_feed_forward_length", std::nullopt);
  config["norm_topk_prob"] = true;
}

constexpr std::string_view kQwen3MoeGgufKeys[] = {"expert_feed_forward_length"};
constexpr GgufRenaming kQwen3MoeGgufTensors[] = {{"ffn_gate_inp.", "mlp.gate."},
                                                 {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
                                                 {"ffn_up_exps.", "mlp.experts.*.up_proj."},
                                                 {"ffn_down_exps.", "mlp.experts.*.down_proj."}};
constexpr GgufArchitecture kQwen3MoeGguf = {.name = "qwen3moe",
                                            .has_experts = true,
                                            .keys = kQwen3MoeGgufKeys,
                                            .tensors = kQwen3MoeGgufTensors,
                                            .add_config = add_qwen3_moe_gguf_config};

}  // namespace

extern const RegisteredArchitecture kQwen3Moe = {.name = "Qwen3MoeForCausalLM",
                                                 .model_type = "qwen3_moe",
                                                 .read_config = read_qwen3_moe_config,
                                                 .gguf = &kQwen3MoeGguf,
                                                 .make = make_qwen3_moe};

}  // namespace troupe
