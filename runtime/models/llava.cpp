// LLaVA 1.5 (arXiv 2310.03744): a language model whose embeddings of images are CLIP's or
// SigLIP's hidden states, projected. An image's tokens are like others: causal, without marks.

#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/models/decoder_config.hpp"
#include "runtime/models/llava_tower.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/vision_config.hpp"

namespace troupe {
namespace {

constexpr std::string_view kLlavaTexts[] = {"llama", "mistral", "qwen2"};

void read_llava_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  const std::string type = text.text("model_type", kLlavaTexts[0]);
  const auto families = registered_architectures();
  const auto family = std::ranges::find(families, type, &RegisteredArchitecture::model_type);
  if (family == families.end()) return text.fail(ErrorCode::kUnsupported, "model_type " + type);
  (*family)->read_config(text, is_gguf, config);
  // Families that have no choice do not ask for these fields.
  config.attention_bias = type == "qwen2" || (type == "llama" && config.attention_bias);
  config.attention_output_bias = type == "llama" && config.attention_output_bias;
  // Published configurations say it in one place or the other.
  if (text.boolean("tie_word_embeddings", false)) config.tie_word_embeddings = true;
}

/// Of the `num_layers` + 1 hidden states, the embeddings first, the one that is projected. Errors
/// stay in `root`.
std::int64_t read_feature_layer(ConfigFields& root, std::int64_t num_layers) {
  constexpr std::string_view kKey = "vision_feature_layer";
  const std::vector<std::int64_t> layers = root.integers(kKey);
  if (layers.size() > 1)
    root.fail(ErrorCode::kUnsupported, std::string(kKey) + " has " + std::to_string(layers.size()) +
                                           " layers, only one is supported");
  const std::int64_t given = layers.empty() ? -2 : layers.front();
  const std::int64_t layer = given < 0 ? num_layers + 1 + given : given;
  if (layer >= 1 && layer <= num_layers) return layer;
  root.fail(ErrorCode::kUnsupported, std::string(kKey) + " is " + std::to_string(given) +
                                         ", which is none of the encoder's " +
                                         std::to_string(num_layers) + " layers");
  return num_layers;
}

/// "default": all rows but the first, which is CLIP's class token.
bool read_skips_first(ConfigFields& root) {
  constexpr std::string_view kKey = "vision_feature_select_strategy";
  const std::string strategy = root.text(kKey, "default");
  if (strategy != "default" && strategy != "full")
    root.fail(ErrorCode::kUnsupported,
              std::string(kKey) + " " + strategy + " is not supported, only default and full");
  return strategy == "default";
}

void read_llava_vision(ConfigFields& root, ConfigFields& vision, ModelConfig& config) {
  const bool is_siglip = vision.text("model_type", "") == "siglip_vision_model";
  VisionConfig& encoder =
      config.vision.emplace(is_siglip ? read_siglip_config(vision) : read_clip_config(vision));
  encoder.num_used_layers = read_feature_layer(root, encoder.num_layers);
  encoder.norms_output = false;
  config.projector = {.activation = read_gelu(root, "projector_hidden_act", "gelu"),
                      .has_bias = root.boolean("multimodal_projector_bias", true)};
  config.image_tokens = {.marks = std::nullopt,
                         .soft = read_token(root, "image_token", 32000, config.vocab_size),
                         .per_image = encoder.num_rows() - (read_skips_first(root) ? 1 : 0)};
  if (config.image_tokens->per_image == 0)
    root.fail(ErrorCode::kUnsupported,
              "vision_feature_select_strategy default leaves nothing of a "
              "image of one patch");
}

std::unique_ptr<Model> make_llava(const ModelConfig& config, Device& device, WeightLoader& loader) {
  auto tower = load_llava_tower(config, device, loader);
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias},
      std::move(tower));
}

}  // namespace

extern const RegisteredArchitecture kLlava = {.name = "LlavaForConditionalGeneration",
                                              .model_type = "llava",
                                              .text_model_types = kLlavaTexts,
                                              .read_config = read_llava_config,
                                              .read_vision = read_llava_vision,
                                              .make = make_llava,
                                              .load_tower = load_llava_tower};

}  // namespace troupe
