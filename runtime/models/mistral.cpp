// Mistral (arXiv 2310.06825): Llama, with a sliding window in every layer where one is set.

#include "runtime/models/architectures.hpp"
#include "runtime/models/pre_norm_decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_mistral(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader, {});
}

}  // namespace troupe
