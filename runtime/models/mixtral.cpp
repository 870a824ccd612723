// Mixtral (arXiv 2401.04088): Mistral, with experts in the MLP's place. GGUF files of it say llama.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_mixtral_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.num_kv_heads = 8, .max_positions = 131072, .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  set_equal_windows(text, text.has("sliding_window") ? read_window(text, 0) : 0, config);
  read_shared_rope(text, is_gguf, 1e6, config);
  ExpertsConfig experts = read_experts(
      text,
      {.key = "num_local_experts", .other_key = "num_experts", .num_experts = 8, .num_chosen = 2});
  experts.intermediate_size = config.intermediate_size;
  experts.normalises_weights = true;
  experts.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  config.experts = std::move(experts);
}

std::unique_ptr<Model> make_mixtral(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.experts_name = "block_sparse_moe",
                                .expert_names = {.gate = "w1", .up = "w3", .down = "w2"}});
}

constexpr GgufRenaming kMixtralGgufTensors[] = {
    {"ffn_gate_inp.", "block_sparse_moe.gate."},
    {"ffn_gate_exps.", "block_sparse_moe.experts.*.w1."},
    {"ffn_up_exps.", "block_sparse_moe.experts.*.w3."},
    {"ffn_down_exps.", "block_sparse_moe.experts.*.w2."}};
constexpr GgufArchitecture kMixtralGguf = {.name = "llama",
                                           .has_experts = true,
                                           .interleaves_heads = true,
                                           .has_rope_divisors = true,
                                           .tensors = kMixtralGgufTensors};

}  // namespace

extern const RegisteredArchitecture kMixtral = {.name = "MixtralForCausalLM",
                                                .model_type = "mixtral",
                                                .read_config = read_mixtral_config,
                                                .gguf = &kMixtralGguf,
                                                .make = make_mixtral};

}  // namespace troupe
