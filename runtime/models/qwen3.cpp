// Qwen3 (arXiv 2505.09388): Llama with a norm on each head of q and k.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_qwen3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.num_kv_heads = 32, .head_dim = 128, .max_positions = 32768}, config);
  check_activation(text, "hidden_act", "silu", config);
  read_qwen_windows(text, config);
  read_shared_rope(text, is_gguf, 1e4, config);
}

std::unique_ptr<Model> make_qwen3(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .qk_norm = true});
}

constexpr GgufArchitecture kQwen3Gguf = {.name = "qwen3"};

}  // namespace

extern const RegisteredArchitecture kQwen3 = {.name = "Qwen3ForCausalLM",
                                              .model_type = "qwen3",
                                              .read_config = read_qwen3_config,
                                              .gguf = &kQwen3Gguf,
                                              .make = make_qwen3};

}  // namespace troupe
