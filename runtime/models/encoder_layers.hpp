#pragma once
// The layers of an encoder of images or sounds: a transformer without a past, whose rows all see
// each other, with norms before each block.

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

  /// An item is encoded in slices: of each layer and a part of the rows the keys and values, then
  /// of each part the rest of the layer. Rows are computed one like the other, so the bits do not
  /// depend on the parts.
  [[nodiscard]] std::int64_t num_slices() const noexcept {
    return options_.num_layers * kNumPhases * num_parts();
  }
  /// x, residual: all rows of one item, [num_rows, hidden_size] each. The hidden states are their
  /// sum, before and after. Pre: the slice before, of the same item, was the last call.
  void run_slice(Device& device, Scratch scratch, Matrix x, Matrix residual,
                 std::int64_t slice) const;
  /// All slices.
  void forward(Device& device, Scratch scratch, Matrix x, Matrix residual) const;
  /// sum = x + residual. x is lost. Pre: there are layers.
  void add(Device& device, Matrix x, Matrix residual, Matrix sum) const;
  /// Of a slice.
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept;

 private:
  /// A layer's: keys and values of all rows come before anything attends to them.
  static constexpr std::int64_t kNumPhases = 2;

  struct Layer {
    LayerNorm attention_norm;
    Linear qkv;
    Linear output;
    LayerNorm mlp_norm;
    Linear up;
    Linear down;
  };
  /// Rows [begin, begin + count).
  struct Part {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    [[nodiscard]] Matrix of(Matrix m) const {
      return {m.row(begin), count, m.num_cols, m.row_stride};
    }
  };
  [[nodiscard]] Layer load_layer(WeightLoader& loader, const std::string& name) const;
  [[nodiscard]] std::int64_t num_parts() const noexcept {
    return (options_.num_rows + rows_per_part_ - 1) / rows_per_part_;
  }
  /// Of q, k or v: of all heads.
  [[nodiscard]] std::int64_t attention_size() const noexcept {
    return options_.num_heads * head_dim_;
  }
  /// Queries, keys and values, [num_rows, 3 * attention_size()].
  [[nodiscard]] Matrix all_qkv() const noexcept {
    return Scratch(qkv_.bytes()).take_spread(options_.num_rows, 3 * attention_size());
  }
  /// x and residual: the part's rows.
  void write_keys_and_values(Device& device, Scratch scratch, const Layer& layer, const Part& part,
                             Matrix x, Matrix residual) const;
  void run_layer(Device& device, Scratch scratch, const Layer& layer, const Part& part, Matrix x,
                 Matrix residual) const;
  void attend(Device& device, const Part& part, Matrix out) const;

  EncoderLayersOptions options_;
  std::int64_t rows_per_part_;
  std::int64_t head_dim_;  ///< with zeros behind what the checkpoint has
  std::vector<Layer> layers_;
  DeviceMemory qkv_;  ///< of one layer and one item
  /// The same keys and values, as a sequence without a past.
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
