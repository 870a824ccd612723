// Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases on q, k and v.

#include "runtime/models/architectures.hpp"
#include "runtime/models/pre_norm_decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_qwen2(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader, {.qkv_bias = true});
}

}  // namespace troupe
