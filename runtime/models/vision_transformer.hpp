#pragma once
// The vision encoders of SigLIP (arXiv 2303.15343) and CLIP (arXiv 2103.00020): vision
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

  /// An image is encoded in slices: the embeddings, then those of the layers.
  [[nodiscard]] std::int64_t num_slices() const noexcept { return 1 + layers_.num_slices(); }
  /// pixels: [num_channels, image_size, image_size], in the host's memory. Pre: the slice before,
  /// of the same image, was the last call.
  void encode_slice(Device& device, Scratch scratch, std::span<const float> pixels,
                    std::int64_t slice) const;
  /// Behind the last slice: the hidden states behind the last layer that is used, of the class
  /// token if there is one, and of the patches row by row of the image: [num_rows, hidden_size],
  /// in memory of `scratch`.
  [[nodiscard]] Matrix finish(Device& device, Scratch& scratch) const;
  /// Of a slice, and of finish().
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept;

 private:
  /// Of one image, between two slices.
  struct Streams {
    Matrix x;         ///< [num_rows, hidden_size]; the hidden states are the sum of this
    Matrix residual;  ///< and this
  };
  [[nodiscard]] Streams streams() const noexcept;
  /// The image's patches as rows of numbers, [num_patches, num_channels * patch_size^2], each in
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
  DeviceMemory streams_;  ///< of one image
};

}  // namespace troupe
