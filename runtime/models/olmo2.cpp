// OLMo 2 (arXiv 2501.00656): Llama, with norms behind the blocks in place of those before them, and
// one norm on all heads of q, and of k.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_olmo2_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.max_positions = 2048, .rms_norm_eps = 1e-5}, config);
  check_activation(text, "hidden_act", "silu", config);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
}

std::unique_ptr<Model> make_olmo2(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .whole_qk_norm = true,
                                .norm_names = {.before_attention = {},
                                               .after_attention = "post_attention_layernorm",
                                               .before_mlp = {},
                                               .after_mlp = "post_feedforward_layernorm"}});
}

constexpr GgufRenaming kOlmo2GgufTensors[] = {{"post_attention_norm.", "post_attention_layernorm."},
                                              {"post_ffw_norm.", "post_feedforward_layernorm."}};
constexpr GgufArchitecture kOlmo2Gguf = {.name = "olmo2", .tensors = kOlmo2GgufTensors};

}  // namespace

extern const RegisteredArchitecture kOlmo2 = {.name = "Olmo2ForCausalLM",
                                              .model_type = "olmo2",
                                              .read_config = read_olmo2_config,
                                              .gguf = &kOlmo2Gguf,
                                              .make = make_olmo2};

}  // namespace troupe
