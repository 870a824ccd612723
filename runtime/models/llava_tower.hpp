#pragma once
// How LLaVA takes in images (arXiv 2310.03744): the hidden states of a vision transformer through
// an MLP of two layers.

#include <memory>

#include "runtime/models/device.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Null where the checkpoint has no encoder, or this rank's stage does not use it. Errors stay in
/// the loader.
[[nodiscard]] std::unique_ptr<const ItemTower> load_llava_tower(const ModelConfig& config,
                                                                Device& device,
                                                                WeightLoader& loader);

}  // namespace troupe
