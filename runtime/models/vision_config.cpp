#include "runtime/models/vision_config.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/models/decoder_config.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMaxImageSize = 8192;

struct GeluName {
  std::string_view name;
  Gelu gelu;
};
constexpr GeluName kGeluNames[] = {{"gelu", Gelu::kErf},
                                   {"gelu_python", Gelu::kErf},
                                   {"gelu_pytorch_tanh", Gelu::kTanh},
                                   {"gelu_new", Gelu::kTanh},
                                   {"gelu_fast", Gelu::kTanh},
                                   {"gelu_accurate", Gelu::kTanh},
                                   {"gelu_python_tanh", Gelu::kTanh},
                                   {"quick_gelu", Gelu::kSigmoid}};

/// What the classes of transformers assume.
struct VisionDefaults {
  std::string_view model_type;
  std::int64_t patch_size = 0;
  double layer_norm_eps = 0;
  std::string_view activation;
};

VisionConfig read_vision_fields(ConfigFields& fields, const VisionDefaults& defaults) {
  const std::string type = fields.text("model_type", defaults.model_type);
  if (type != defaults.model_type)
    fields.fail(ErrorCode::kUnsupported, "model_type " + type + " is not supported");
  VisionConfig config{
      .hidden_size = fields.integer("hidden_size", 768, 1, kMaxConfigSize),
      .intermediate_size = fields.integer("intermediate_size", 3072, 1, kMaxConfigSize),
      .num_layers = fields.integer("num_hidden_layers", 12, 1, kMaxConfigLayers),
      .num_heads = fields.integer("num_attention_heads", 12, 1, kMaxConfigSize),
      .num_channels = fields.integer("num_channels", 3, 3, 3),
      .image_size = fields.integer("image_size", 224, 1, kMaxImageSize),
      .patch_size = fields.integer("patch_size", defaults.patch_size, 1, kMaxImageSize),
      .layer_norm_eps =
          static_cast<float>(fields.number("layer_norm_eps", defaults.layer_norm_eps)),
      .activation = read_gelu(fields, "hidden_act", defaults.activation)};
  config.num_used_layers = config.num_layers;
  if (config.hidden_size % config.num_heads != 0 ||
      config.hidden_size / config.num_heads > kMaxHeadDim)
    fields.fail(ErrorCode::kUnsupported, "hidden_size " + std::to_string(config.hidden_size) +
                                             " cannot be divided into " +
                                             std::to_string(config.num_heads) +
                                             " heads of at most " + std::to_string(kMaxHeadDim));
  if (config.patch_size > config.image_size)
    fields.fail(ErrorCode::kCorrupt, "patch_size " + std::to_string(config.patch_size) +
                                         " is larger than image_size " +
                                         std::to_string(config.image_size));
  return config;
}

}  // namespace

Gelu read_gelu(ConfigFields& fields, std::string_view key, std::string_view otherwise) {
  const std::string name = fields.text(key, otherwise);
  const auto* const found = std::ranges::find(kGeluNames, name, &GeluName::name);
  if (found != std::end(kGeluNames)) return found->gelu;
  fields.fail(ErrorCode::kUnsupported,
              std::string(key) + " " + name +
                  " is not supported, only gelu, gelu_pytorch_tanh and quick_gelu");
  return Gelu::kErf;
}

TokenId read_token(ConfigFields& root, const std::string& name, std::int64_t otherwise,
                   std::int64_t vocab_size) {
  const std::int64_t id = root.integer_of(name + "_id", name + "_index", otherwise, 0, INT32_MAX);
  if (id >= vocab_size)
    root.fail(ErrorCode::kCorrupt, name + "_index is " + std::to_string(id) +
                                       ", the vocabulary has " + std::to_string(vocab_size) +
                                       " tokens");
  return static_cast<TokenId>(id);
}

VisionConfig read_siglip_config(ConfigFields& fields) {
  return read_vision_fields(fields, {.model_type = "siglip_vision_model",
                                     .patch_size = 16,
                                     .layer_norm_eps = 1e-6,
                                     .activation = "gelu_pytorch_tanh"});
}

VisionConfig read_clip_config(ConfigFields& fields) {
  VisionConfig config = read_vision_fields(fields, {.model_type = "clip_vision_model",
                                                    .patch_size = 32,
                                                    .layer_norm_eps = 1e-5,
                                                    .activation = "quick_gelu"});
  config.has_class_token = true;
  config.has_patch_bias = false;
  config.norms_input = true;
  return config;
}

}  // namespace troupe
