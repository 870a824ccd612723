#pragma once
// Llama and its descendants: residual + attention(norm(residual)), then the same
// with the MLP, and one rotation for all layers.

#include <memory>

#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// What the attention of an architecture has beyond that of the plain stack.
struct AttentionExtras {
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
};

/// Loads such a model. Errors stay in the loader.
std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, AttentionExtras extras);

}  // namespace troupe
