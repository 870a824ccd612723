#pragma once
// Llama and its descendants: residual + attention(norm(residual)), then the same with the MLP or a
// mixture of experts, and one rotation for all layers.

#include <memory>
#include <string_view>

#include "runtime/models/device.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// What an architecture has beyond the plain stack.
struct DecoderExtras {
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  /// Where layers have experts: what checkpoints call the mixture in a layer, and its matrices.
  std::string_view experts_name = "mlp";
  MlpNames expert_names;
};

/// Loads such a model; `tower` is as in DecoderModel. Errors stay in the loader.
std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, const DecoderExtras& extras,
                                             std::unique_ptr<const ItemTower> tower = nullptr);

}  // namespace troupe
