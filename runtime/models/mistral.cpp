// Mistral (arXiv 2310.06825): Llama, with a sliding window in every layer where one is set. GGUF
// files of it say llama.

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_mistral_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 14336,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 32000,
              .num_kv_heads = 8,
              .max_positions = 131072},
             config);
  check_activation(text, "hidden_act", "silu", config);
  set_equal_windows(text, read_window(text, 4096), config);
  read_shared_rope(text, is_gguf, 1e4, config);
}

std::unique_ptr<Model> make_mistral(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader, {});
}

}  // namespace

extern const RegisteredArchitecture kMistral = {.name = "MistralForCausalLM",
                                                .model_type = "mistral",
                                                .read_config = read_mistral_config,
                                                .make = make_mistral};

}  // namespace troupe
