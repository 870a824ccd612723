#pragma once
// The layers of an encoder of sounds: a transformer without a past, whose rows all see each other,
// with norms before each block.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/models/device.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// What checkpoints call the parts of a layer.
struct EncoderLayerNames {
  std::string_view attention_norm = "layer_norm1";
  std::string_view mlp_norm = "layer_norm2";
  std::string_view up = "mlp.fc1";
  std::string_view down = "mlp.fc2";
};

struct EncoderLayersOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_rows = 0;  ///< of one item
  float layer_norm_eps = 1e-6f;
  Gelu activation = Gelu::kErf;
  bool k_bias = true;  ///< q and v have one
  EncoderLayerNames names = {};
};

/// Loaded whole by each rank that has it.
class EncoderLayers {
 public:
  /// `prefix` stands before "0.self_attn.q_proj.weight". Errors stay in the loader.
  EncoderLayers(WeightLoader& loader, Device& device, const std::string& prefix,
                const EncoderLayersOptions& options);

  /// Of one item, [num_rows, hidden_size] each: the hidden states are x + residual, before and
  /// after. `normed` is scratch; `scratch` has the bytes that memory() says.
  void forward(Device& device, Scratch scratch, Matrix x, Matrix residual, Matrix normed) const;
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept;

 private:
  struct Layer {
    LayerNorm attention_norm;
    Linear qkv;
    Linear output;
    LayerNorm mlp_norm;
    Linear up;
    Linear down;
  };
  [[nodiscard]] Layer load_layer(WeightLoader& loader, const std::string& name) const;
  /// Of q, k or v: of all heads.
  [[nodiscard]] std::int64_t attention_size() const noexcept {
    return options_.num_heads * head_dim_;
  }
  void attend(Device& device, Matrix qkv, Matrix out) const;

  EncoderLayersOptions options_;
  std::int64_t head_dim_;  ///< with zeros behind what the checkpoint has
  std::vector<Layer> layers_;
  /// One layer's keys and values of one item, as a sequence without a past.
  KvCacheView cache_;
  DeviceMemory cache_memory_;
  DeviceArray<std::int64_t> slots_;
  DeviceArray<std::int32_t> block_table_;
  DeviceArray<std::int32_t> sequence_;  ///< query_start_loc (which is span_start_loc too), seq_lens
  DeviceArray<std::int32_t> span_start_loc_;
  DeviceArray<TwoWaySpan> span_;  ///< all rows see each other
};

/// Attention with bf16 units takes whole multiples; SigLIP's largest models have heads of 72. Zeros
/// change no sum.
[[nodiscard]] std::int64_t padded_head_dim(const Device& device, std::int64_t head_dim,
                                           ComputeMode mode);

}  // namespace troupe
