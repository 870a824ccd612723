// Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped queries, optional biases everywhere.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_llama_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 11008,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 32000,
              .max_positions = 2048},
             config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
}

std::unique_ptr<Model> make_llama(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

constexpr GgufArchitecture kLlamaGguf = {
    .name = "llama", .interleaves_heads = true, .has_rope_divisors = true};

}  // namespace

extern const RegisteredArchitecture kLlama = {.name = "LlamaForCausalLM",
                                              .model_type = "llama",
                                              .read_config = read_llama_config,
                                              .gguf = &kLlamaGguf,
                                              .make = make_llama};

}  // namespace troupe
