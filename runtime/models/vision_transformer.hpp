#pragma once
// The encoders of pictures of SigLIP (arXiv 2303.15343) and CLIP (arXiv 2103.00020): vision
// transformers with learned positions and norms before each block.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/device.hpp"
#include "runtime/models/encoder_layers.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Loaded whole by each rank that has it.
class VisionTransformer {
 public:
  /// `prefix` stands before "embeddings.patch_embedding.weight". Errors stay in the loader.
  VisionTransformer(WeightLoader& loader, Device& device, const std::string& prefix,
                    const VisionConfig& config);

  /// pixels: [num_channels, image_size, image_size], in the host's memory. Returns the hidden
  /// states behind the last layer that is used, of the class token if there is one, and of the
  /// patches row by row of the picture: [num_rows, hidden_size], in memory of `scratch`.
  [[nodiscard]] Matrix encode(Device& device, Scratch& scratch,
                              std::span<const float> pixels) const;
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept;

 private:
  /// Of one picture, [num_rows, hidden_size] each: the hidden states are their sum.
  struct Streams {
    Matrix x;
    Matrix residual;
  };
  /// The picture's patches as rows of numbers, [num_patches, num_channels * patch_size^2], each in
  /// the order of the patch embedding's kernel.
  [[nodiscard]] std::vector<float> cut_patches(std::span<const float> pixels) const;
  /// streams.x + streams.residual = the embeddings.
  void embed(Device& device, Scratch scratch, std::span<const float> pixels,
             const Streams& streams) const;

  VisionConfig config_;
  Linear patch_embedding_;
  DeviceArray<float> positions_;  ///< [num_rows, hidden_size], the class token's with itself
  std::optional<LayerNorm> input_norm_;
  EncoderLayers layers_;
  std::optional<LayerNorm> output_norm_;
};

}  // namespace troupe
