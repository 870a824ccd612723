#include "runtime/models/vision_tower.hpp"

#include <algorithm>

#include "runtime/base/log.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

std::optional<VisionTowerNames> find_vision_tower(const ModelConfig& config, WeightLoader& loader) {
  // The names of transformers 4, and of 5 with and without the inner model's.
  for (const std::string root : {"", "model."}) {
    const std::string tower = root + "vision_tower.";
    const std::string projector = root + "multi_modal_projector.";
    for (const std::string inner : {"vision_model.", ""}) {
      if (!loader.has(tower + inner + "embeddings.patch_embedding.weight")) continue;
      loader.ignore(tower + inner + "head.");  // of the task that SigLIP was trained for
      if (!loader.parallel().is_first_stage()) {
        loader.ignore(tower);
        loader.ignore(projector);
        return std::nullopt;
      }
      if (!config.vision) {
        loader.fail(ErrorCode::kCorrupt,
                    "config.json: vision_config is missing, and the checkpoint has " + tower);
        return std::nullopt;
      }
      return VisionTowerNames{tower + inner, projector};
    }
  }
  if (config.vision) log_warning("the checkpoint has no vision encoder: it takes text alone");
  return std::nullopt;
}

Result<void> check_image(const VisionConfig& vision, std::int64_t num_rows,
                         const EncoderItem& item) {
  if (item.modality != "image")
    return Error{ErrorCode::kUnsupported,
                 "the model has no encoder for items of modality " + std::string(item.modality)};
  const std::int64_t expected[] = {vision.num_channels, vision.image_size, vision.image_size};
  if (!std::ranges::equal(item.shape, expected))
    return invalid_argument("an image has the shape " + shape_text(item.shape) +
                            ", the model's encoder takes " + shape_text(expected));
  if (item.num_rows != num_rows)
    return invalid_argument("an image stands for " + std::to_string(item.num_rows) +
                            " tokens, the model's encoder makes " + std::to_string(num_rows));
  return {};
}

}  // namespace troupe
