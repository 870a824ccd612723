#pragma once
// The encoders of pictures of SigLIP (arXiv 2303.15343) and CLIP (arXiv 2103.00020): vision
// transformers with learned positions and norms before each block.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/device.hpp"
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

  /// A picture is encoded in slices: the embeddings, then of each layer and a part of the rows the
  /// keys and values, then of each part the rest of the layer. Rows are computed one like the
  /// other, so the bits do not depend on the parts.
  [[nodiscard]] std::int64_t num_slices() const noexcept {
    return 1 + static_cast<std::int64_t>(layers_.size()) * kNumPhases * num_parts();
  }
  /// pixels: [num_channels, image_size, image_size], in the host's memory. Pre: the slice before,
  /// of the same picture, was the last call.
  void encode_slice(Device& device, Scratch scratch, std::span<const float> pixels,
                    std::int64_t slice) const;
  /// Behind the last slice: the hidden states behind the last layer that is used, of the class
  /// token if there is one, and of the patches row by row of the picture: [num_rows, hidden_size],
  /// in memory of `scratch`.
  [[nodiscard]] Matrix finish(Device& device, Scratch& scratch) const;
  /// Of a slice, and of finish().
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept;

 private:
  /// A layer's: keys and values of all rows come before anything attends to them.
  static constexpr std::int64_t kNumPhases = 2;

  /// Of one picture, between two slices.
  struct Streams {
    Matrix x;         ///< [num_rows, hidden_size]; the hidden states are the sum of this
    Matrix residual;  ///< and this
    Matrix qkv;       ///< [num_rows, 3 * attention_size()], of one layer
  };
  /// Rows [begin, begin + count).
  struct Part {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    [[nodiscard]] Matrix of(Matrix m) const {
      return {m.row(begin), count, m.num_cols, m.row_stride};
    }
  };
  struct Layer {
    LayerNorm attention_norm;
    Linear qkv;
    Linear output;
    LayerNorm mlp_norm;
    Linear up;
    Linear down;
  };
  [[nodiscard]] Layer load_layer(WeightLoader& loader, const std::string& name) const;
  [[nodiscard]] std::int64_t num_parts() const noexcept {
    return (config_.num_rows() + rows_per_part_ - 1) / rows_per_part_;
  }
  [[nodiscard]] Streams streams() const noexcept;
  void write_keys_and_values(Device& device, Scratch scratch, const Layer& layer,
                             const Part& part) const;
  void run_layer(Device& device, Scratch scratch, const Layer& layer, const Part& part) const;
  /// The picture's patches as rows of numbers, [num_patches, num_channels * patch_size^2], each in
  /// the order of the patch embedding's kernel.
  [[nodiscard]] std::vector<float> cut_patches(std::span<const float> pixels) const;
  /// streams.x + streams.residual = the embeddings.
  void embed(Device& device, Scratch scratch, std::span<const float> pixels,
             const Streams& streams) const;
  /// Of q, k or v: of all heads.
  [[nodiscard]] std::int64_t attention_size() const noexcept {
    return config_.num_heads * head_dim_;
  }
  void attend(Device& device, const Part& part, Matrix out) const;

  VisionConfig config_;
  std::int64_t rows_per_part_;
  std::int64_t head_dim_;  ///< with zeros behind what the checkpoint has
  Linear patch_embedding_;
  DeviceArray<float> positions_;  ///< [num_rows, hidden_size], the class token's with itself
  std::optional<LayerNorm> input_norm_;
  std::vector<Layer> layers_;
  std::optional<LayerNorm> output_norm_;
  DeviceMemory streams_;  ///< of one picture
  /// One layer's keys and values of one picture, as a sequence without a past.
  KvCacheView cache_;
  DeviceMemory cache_memory_;
  DeviceArray<std::int64_t> slots_;
  DeviceArray<std::int32_t> block_table_;
  /// query_start_loc of a part, of the last part, and seq_lens.
  DeviceArray<std::int32_t> sequence_;
  DeviceArray<std::int32_t> span_start_loc_;
  DeviceArray<TwoWaySpan> span_;  ///< all rows see each other
};

}  // namespace troupe
