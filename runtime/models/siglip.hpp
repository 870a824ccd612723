#pragma once
// SigLIP's encoder of pictures (arXiv 2303.15343): a vision transformer with learned positions and
// norms before each block.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/config_fields.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// A siglip_vision_model's configuration, with the defaults of its class. Errors stay in `fields`.
[[nodiscard]] VisionConfig read_siglip_config(ConfigFields& fields);

/// Loaded whole by each rank that has it.
class SiglipTower {
 public:
  /// `prefix` stands before "embeddings.patch_embedding.weight". Errors stay in the loader.
  SiglipTower(WeightLoader& loader, Device& device, const std::string& prefix,
              const VisionConfig& config);

  /// pixels: [num_channels, image_size, image_size], in the host's memory. Returns the patches'
  /// hidden states behind the last norm, row by row of the picture: [num_patches, hidden_size], in
  /// memory of `scratch`.
  [[nodiscard]] Matrix encode(Device& device, Scratch& scratch,
                              std::span<const float> pixels) const;
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
  /// The picture's patches as rows of numbers, [num_patches, num_channels * patch_size^2], each in
  /// the order of the patch embedding's kernel.
  [[nodiscard]] std::vector<float> cut_patches(std::span<const float> pixels) const;
  void attend(Device& device, Matrix qkv, Matrix out) const;

  VisionConfig config_;
  Linear patch_embedding_;
  DeviceArray<float> positions_;  ///< [num_patches, hidden_size]
  std::vector<Layer> layers_;
  LayerNorm norm_;
  /// One layer's keys and values of one picture, as a sequence without a past.
  KvCacheView cache_;
  DeviceMemory cache_memory_;
  DeviceArray<std::int64_t> slots_;
  DeviceArray<std::int32_t> block_table_;
  DeviceArray<std::int32_t> sequence_;  ///< query_start_loc (which is span_start_loc too), seq_lens
  DeviceArray<std::int32_t> span_start_loc_;
  DeviceArray<TwoWaySpan> span_;  ///< all patches see each other
};

}  // namespace troupe
