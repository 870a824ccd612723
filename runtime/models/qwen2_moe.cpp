// Qwen1.5 and Qwen2 with experts (arXiv 2407.10671): Qwen2, in whose layers, but those of
// mlp_only_layers, a mixture stands in the MLP's place, beside an expert that all tokens go
// through.

#include <algorithm>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_qwen2_moe_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.num_kv_heads = 16, .max_positions = 32768}, config);
  config.attention_bias = text.boolean("qkv_bias", true);
  check_activation(text, "hidden_act", "silu", config);
  // As transformers has it: in every second one of the first layers.
  const std::int32_t window =
      text.boolean("use_sliding_window", false) ? read_window(text, 4096) : 0;
  const std::int64_t end = text.integer("max_window_layers", 28, 0, INT32_MAX);
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    windowed.push_back(window != 0 && layer % 2 == 0 && layer < end);
  set_layer_windows(text, window, std::move(windowed), config);
  read_shared_rope(text, is_gguf, 1e4, config);
  ExpertsConfig experts =
      read_experts(text, {.key = "num_experts", .num_experts = 60, .num_chosen = 4});
  experts.intermediate_size = text.integer("moe_intermediate_size", 1408, 1, kMaxConfigSize);
  experts.shared_size = text.integer("shared_expert_intermediate_size", 5632, 1, kMaxConfigSize);
  experts.normalises_weights = text.boolean("norm_topk_prob", false);
  const std::int64_t step = text.integer("decoder_sparse_step", 1, 1, kMaxConfigLayers);
  const std::vector<double> dense = text.numbers("mlp_only_layers");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    experts.layers.push_back((layer + 1) % step == 0 &&
                             std::ranges::find(dense, static_cast<double>(layer)) == dense.end());
  config.experts = std::move(experts);
}

std::unique_ptr<Model> make_qwen2_moe(const ModelConfig& config, Device& device,
                                      WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .shared_gate_name = "shared_expert_gate"});
}

/// As in llama.cpp: experts are in every layer, and their weights are not normalised.
void add_qwen2_moe_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                               nlohmann::json& config) {
  const auto size = config["intermediate_size"].get<std::int64_t>();
  const auto num_chosen =
      std::max<std::int64_t>(1, config["num_experts_per_tok"].get<std::int64_t>());
  config["moe_intermediate_size"] =
      metadata.integer(prefix + "expert_feed_forward_length", size / num_chosen);
  config["shared_expert_intermediate_size"] =
      metadata.integer(prefix + "expert_shared_feed_forward_length", size);
  config["norm_topk_prob"] = false;
  config["qkv_bias"] = config["attention_bias"];
}

constexpr std::string_view kQwen2MoeGgufKeys[] = {"expert_feed_forward_length",
                                                  "expert_shared_feed_forward_length"};
constexpr GgufRenaming kQwen2MoeGgufTensors[] = {
    {"ffn_gate_inp.", "mlp.gate."},
    {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.*.up_proj."},
    {"ffn_down_exps.", "mlp.experts.*.down_proj."},
    {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate.", GgufShape::kRow},
    {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_expert.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_expert.down_proj."}};
constexpr GgufArchitecture kQwen2MoeGguf = {.name = "qwen2moe",
                                            .has_experts = true,
                                            .keys = kQwen2MoeGgufKeys,
                                            .tensors = kQwen2MoeGgufTensors,
                                            .add_config = add_qwen2_moe_gguf_config};

}  // namespace

extern const RegisteredArchitecture kQwen2Moe = {.name = "Qwen2MoeForCausalLM",
                                                 .model_type = "qwen2_moe",
                                                 .read_config = read_qwen2_moe_config,
                                                 .gguf = &kQwen2MoeGguf,
                                                 .make = make_qwen2_moe};

}  // namespace troupe
