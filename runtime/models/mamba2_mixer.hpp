#pragma once
// The mixer of Mamba-2 (arXiv 2405.21060): a causal convolution and a selective state space.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/models/layers.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

struct Mamba2Options {
  std::size_t layer = 0;  ///< LayerCacheSpec::layer
  std::int64_t hidden_size = 0;
  StateSpaceConfig config;
  std::int32_t canonical_shards = 1;  ///< of the model
};

/// From in_proj come z, x, B, C and dt. x, B and C go through the convolution, then x through the
/// state space, with the others as its parameters; what comes of it is gated by z, normed, and goes
/// through out_proj. A state is what both need of the tokens before, in f32: rounded ones would
/// depend on where steps end.
///
/// A rank has some heads and the groups of B and C that they need; where heads cannot be divided
/// among all ranks, several have the same. Where a group's norm is over the
/// heads of several ranks, these exchange sums of squares, in parts that do not depend on how many
/// they are.
class Mamba2Mixer final : public Mixer {
 public:
  /// The options are those of the whole layer.
  Mamba2Mixer(WeightLoader& loader, const std::string& name, const Mamba2Options& options);
  /// x: [num_tokens, hidden_size], out: [num_queries, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;
  [[nodiscard]] std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size,
                                                         DType dtype) const override;

 private:
  /// shards: parts of the sum over heads.
  Mamba2Mixer(WeightLoader& loader, const std::string& name, const Mamba2Options& options,
              std::int32_t shards);
  [[nodiscard]] std::int64_t inner_size() const noexcept {
    return config_.num_heads * config_.head_dim;
  }
  [[nodiscard]] std::int64_t group_columns() const noexcept {
    return config_.num_groups * config_.state_size;
  }
  /// Of the convolution: x, B and C.
  [[nodiscard]] std::int64_t num_channels() const noexcept {
    return inner_size() + 2 * group_columns();
  }
  [[nodiscard]] std::int64_t projected_size() const noexcept {
    return inner_size() + num_channels() + config_.num_heads;
  }
  [[nodiscard]] std::int64_t conv_state_floats() const noexcept {
    return (config_.conv_width - 1) * num_channels();
  }
  /// Of the norm, over all ranks: parts of which each is within one group and on one rank.
  [[nodiscard]] std::int64_t num_norm_parts() const noexcept { return num_norm_parts_; }
  void gate_and_norm(const LayerStep& step, Matrix y, ConstMatrix z, Scratch scratch) const;

  std::size_t layer_;
  ParallelConfig states_;    ///< the ranks among which heads are divided
  StateSpaceConfig config_;  ///< heads and groups are those of this rank
  bool is_copy_;             ///< another rank has the same heads, and puts them into sums
  std::int64_t num_norm_groups_;
  std::int64_t num_norm_parts_;
  Linear in_proj_;
  AdaptedMatrix adapted_zx_;        // the rows of in_proj for z and x,
  AdaptedMatrix adapted_bcdt_;      // and those for B, C and dt
  DeviceArray<float> conv_weight_;  // [width, channels]
  DeviceArray<float> conv_bias_;    // empty: none
  DeviceArray<float> dt_bias_;
  DeviceArray<float> a_;
  DeviceArray<float> skip_;
  DeviceArray<float> norm_weight_;  // empty: no norm
  RowParallelLinear out_proj_;
  AdaptedMatrix adapted_out_;
};

/// What layer `layer` of a hybrid, which checkpoints call `name`, has before its MLP: a state space
/// or attention, as the configuration says. Errors stay in the loader.
[[nodiscard]] std::unique_ptr<const Mixer> load_state_space_or_attention(
    WeightLoader& loader, const std::string& name, const ModelConfig& config, std::size_t layer,
    const std::shared_ptr<const RopeTables>& rope);

}  // namespace troupe
