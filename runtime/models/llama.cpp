// Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped queries, optional biases everywhere.

#include "runtime/models/architectures.hpp"
#include "runtime/models/decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_llama(const ModelConfig& config, Device& device, WeightLoader& loader) {
  const auto rope =
      std::make_shared<const RotaryEmbedding>(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention = attention_options(config, i, rope);
    attention.qkv_bias = attention.output_bias = config.attention_bias;
    layers.push_back(std::make_unique<PreNormLayer>(loader, prefix + std::to_string(i), config,
                                                    std::move(attention)));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = {.eps = config.rms_norm_eps}});
}

}  // namespace troupe
