// ERNIE 4.5 (Baidu): Llama, with heads rotated in neighbouring pairs, and one field for all biases.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_ernie4_5_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 1024,
              .intermediate_size = 3072,
              .num_layers = 18,
              .num_heads = 16,
              .vocab_size = 103424,
              .num_kv_heads = 2,
              .head_dim = 128,
              .max_positions = 131072,
              .rms_norm_eps = 1e-5},
             config);
  config.mlp_bias = text.boolean(is_gguf ? "mlp_bias" : "use_bias", false);
  if (!is_gguf) config.attention_bias = config.attention_output_bias = config.mlp_bias;
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf, {.default_theta = 5e5, .pairs_neighbours = true}, config);
  set_no_windows(text, config);
}

std::unique_ptr<Model> make_ernie4_5(const ModelConfig& config, Device& device,
                                     WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

constexpr GgufArchitecture kErnie4_5Gguf = {.name = "ernie4_5"};

}  // namespace

extern const RegisteredArchitecture kErnie4_5 = {.name = "Ernie4_5ForCausalLM",
                                                 .model_type = "ernie4_5",
                                                 .ties_embeddings = true,
                                                 .read_config = read_ernie4_5_config,
                                                 .gguf = &kErnie4_5Gguf,
                                                 .make = make_ernie4_5};

}  // namespace troupe
