#pragma once
// How Gemma 3 takes in images (arXiv 2503.19786): SigLIP's patches, averaged over squares, normed
// and projected.

#include <cstdint>
#include <memory>

#include "runtime/models/config_fields.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Whether the patches of an image can be averaged to `per_image` rows. Errors stay in `root`:
/// kUnsupported.
void check_gemma3_pooling(ConfigFields& root, const VisionConfig& vision, std::int64_t per_image);

/// Null where the checkpoint has no encoder, or this rank's stage does not use it. Errors stay in
/// the loader.
[[nodiscard]] std::unique_ptr<const ItemTower> load_gemma3_tower(const ModelConfig& config,
                                                                 Device& device,
                                                                 WeightLoader& loader);

}  // namespace troupe
