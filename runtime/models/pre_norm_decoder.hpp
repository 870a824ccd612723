#pragma once
// Llama and its descendants: residual + attention(norm(residual)), then the same with the MLP or a
// mixture of experts, and one rotation for all layers. Some have norms behind the blocks too, or
// there alone.

#include <memory>
#include <string>
#include <string_view>

#include "runtime/models/decoder.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/experts.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// What checkpoints call the norms of a layer; empty: it has none there.
struct LayerNormNames {
  std::string_view before_attention = "input_layernorm";
  std::string_view after_attention = {};
  std::string_view before_mlp = "post_attention_layernorm";
  std::string_view after_mlp = {};
};

/// What an architecture has beyond the plain stack.
struct DecoderExtras {
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  bool whole_qk_norm = false;  ///< AttentionOptions::whole_qk_norm
  bool has_sinks = false;
  float norm_weight_offset = 0;
  Activation activation = Activation::kSilu;
  LayerNormNames norm_names = {};
  AttentionNames attention_names = {};
  std::string_view mlp_name = "mlp";
  MlpNames mlp_names = {};
  /// Where layers have experts: what checkpoints call the mixture in a layer, and its matrices.
  std::string_view experts_name = "mlp";
  MlpNames expert_names;
  ExpertParts* expert_parts = named_expert_parts;  ///< and what follows: see ExpertsOptions
  ExpertStack expert_stack = ExpertStack::kHalves;
  std::string_view router_name = "gate";
  bool router_bias = false;
  bool expert_bias = false;
  std::string_view choice_bias_name = {};
  /// What they call the expert that all tokens go through, and its gate.
  std::string_view shared_name = "shared_expert";
  std::string_view shared_gate_name = {};
};

/// Loads layer number `layer` of `config`, which checkpoints call `name`. Errors stay in the
/// loader.
DecoderLayer load_pre_norm_layer(WeightLoader& loader, const std::string& name,
                                 const ModelConfig& config, std::size_t layer,
                                 const AttentionOptions& attention, const DecoderExtras& extras);

/// Loads such a model; `tower` is as in DecoderModel. Errors stay in the loader.
std::unique_ptr<Model> make_pre_norm_decoder(const ModelConfig& config, Device& device,
                                             WeightLoader& loader, const DecoderExtras& extras,
                                             std::unique_ptr<const ItemTower> tower = nullptr);

}  // namespace troupe
