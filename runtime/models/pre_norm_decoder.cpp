#include "runtime/models/pre_norm_decoder.hpp"

#include <string>
#include <utility>
#include <vector>

#include "runtime/models/decoder.hpp"

namespace troupe {

std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, AttentionExtras extras) {
  const auto rope =
      std::make_shared<const RotaryEmbedding>(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention = attention_options(config, i, rope);
    attention.qkv_bias = extras.qkv_bias;
    attention.output_bias = extras.output_bias;
    attention.qk_norm = extras.qk_norm;
    layers.push_back(std::make_unique<PreNormLayer>(loader, prefix + std::to_string(i), config,
                                                    std::move(attention)));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = {.eps = config.rms_norm_eps}});
}

}  // namespace troupe
