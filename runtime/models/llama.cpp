// Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped queries, optional biases everywhere.

#include "runtime/models/architectures.hpp"
#include "runtime/models/pre_norm_decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_llama(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

}  // namespace troupe
