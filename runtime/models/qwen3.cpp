// Qwen3 (arXiv 2505.09388): Llama with a norm on each head of q and k.

#include "runtime/models/architectures.hpp"
#include "runtime/models/pre_norm_decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_qwen3(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .qk_norm = true});
}

}  // namespace troupe
