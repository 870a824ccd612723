// Seed-OSS (ByteDance): Llama, with biases of its own on q, k and v, and on the attention's output.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_seed_oss_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 27648,
              .num_layers = 64,
              .num_heads = 80,
              .vocab_size = 155136,
              .num_kv_heads = 8,
              .head_dim = 128,
              .max_positions = 524288},
             config);
  config.attention_bias = text.boolean("attention_bias", true);
  if (!is_gguf) config.attention_output_bias = text.boolean("attention_out_bias", false);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
}

std::unique_ptr<Model> make_seed_oss(const ModelConfig& config, Device& device,
                                     WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

constexpr GgufRenaming kSeedOssGgufTensors[] = {
    {"post_attention_norm.", "post_attention_layernorm."}};
constexpr GgufArchitecture kSeedOssGguf = {.name = "seed_oss", .tensors = kSeedOssGgufTensors};

}  // namespace

extern const RegisteredArchitecture kSeedOss = {.name = "SeedOssForCausalLM",
                                                .model_type = "seed_oss",
                                                .read_config = read_seed_oss_config,
                                                .gguf = &kSeedOssGguf,
                                                .make = make_seed_oss};

}  // namespace troupe
