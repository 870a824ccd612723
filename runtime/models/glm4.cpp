// GLM-4 of 2025 (arXiv 2406.12793): norms before and after each block, gate and up in one matrix,
// biases on q, k and v, and a part of each head rotated in neighbouring pairs.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_glm4_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(
      text, is_gguf,
      {.num_kv_heads = 2, .head_dim = 128, .max_positions = 131072, .rms_norm_eps = 1.5625e-7},
      config);
  config.attention_bias = text.boolean("attention_bias", true);
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf,
                   {.rotates_part = true, .default_part = 0.5, .pairs_neighbours = true}, config);
  set_no_windows(text, config);
}

std::unique_ptr<Model> make_glm4(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .norm_names = {.after_attention = "post_self_attn_layernorm",
                                               .after_mlp = "post_mlp_layernorm"},
                                .mlp_names = {.gate_up = "gate_up_proj"}});
}

constexpr GgufRenaming kGlm4GgufTensors[] = {{"post_attention_norm.", "post_self_attn_layernorm."},
                                             {"post_ffw_norm.", "post_mlp_layernorm."},
                                             {"ffn_up.", "mlp.gate_up_proj."}};
constexpr GgufArchitecture kGlm4Gguf = {
    .name = "glm4", .rotates_part = true, .tensors = kGlm4GgufTensors};

}  // namespace

extern const RegisteredArchitecture kGlm4 = {.name = "Glm4ForCausalLM",
                                             .model_type = "glm4",
                                             .read_config = read_glm4_config,
                                             .gguf = &kGlm4Gguf,
                                             .make = make_glm4};

}  // namespace troupe
