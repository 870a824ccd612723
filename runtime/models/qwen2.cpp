// Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases on q, k and v.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_qwen2_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 22016,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 151936,
              .num_kv_heads = 32,
              .max_positions = 32768},
             config);
  check_activation(text, "hidden_act", "silu", config);
  read_qwen_windows(text, config);
  read_shared_rope(text, is_gguf, 1e4, config);
}

std::unique_ptr<Model> make_qwen2(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader, {.qkv_bias = true});
}

constexpr GgufArchitecture kQwen2Gguf = {.name = "qwen2"};

}  // namespace

extern const RegisteredArchitecture kQwen2 = {.name = "Qwen2ForCausalLM",
                                              .model_type = "qwen2",
                                              .read_config = read_qwen2_config,
                                              .gguf = &kQwen2Gguf,
                                              .make = make_qwen2};

}  // namespace troupe
