#pragma once
// What the vision towers share: where checkpoints keep them, and what they take.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Prefixes of a checkpoint's tensors.
struct VisionTowerNames {
  std::string encoder;    ///< of "embeddings.patch_embedding.weight"
  std::string projector;  ///< of what brings its output into the decoder's embeddings
};

/// The tower that this rank is to load, and leaves out what of it is not used. None: the checkpoint
/// has no encoder (which is logged if `config` has one), or this rank's stage does not use it.
/// Errors stay in the loader: kCorrupt, the configuration has none.
[[nodiscard]] std::optional<VisionTowerNames> find_vision_tower(const ModelConfig& config,
                                                                WeightLoader& loader);

/// Whether `item` is an image as the encoder takes it, for so many rows. Errors: kUnsupported,
/// kInvalidArgument.
[[nodiscard]] Result<void> check_image(const VisionConfig& vision, std::int64_t num_rows,
                                       const EncoderItem& item);

}  // namespace troupe
