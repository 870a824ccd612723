#pragma once
// Attention of a decoder's tokens to the rows that an encoder made of a request's input.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/models/layers.hpp"

namespace troupe {

struct CrossAttentionOptions {
  std::size_t layer = 0;  ///< LayerCacheSpec::layer
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t num_encoder_rows = 0;  ///< of one input
  std::int32_t canonical_shards = 1;
};

/// Keys and values of an encoder's rows are written to the cache in the step that encodes them, and
/// are there for all later tokens of the request. For the heads of this rank.
class CrossAttention final : public Mixer {
 public:
  /// The options are those of the whole layer. q, v and the output have biases.
  CrossAttention(WeightLoader& loader, const std::string& name,
                 const CrossAttentionOptions& options);
  /// x and out: [num_tokens, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;
  [[nodiscard]] std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size,
                                                         DType dtype) const override;

 private:
  void write_encoder_rows(const LayerStep& step, const KvCacheView& pages,
                          const std::int64_t* slots) const;
  [[nodiscard]] std::int64_t size() const noexcept {
    return options_.num_heads * options_.head_dim;
  }

  CrossAttentionOptions options_;  ///< heads are those of this rank
  Linear q_proj_;
  Linear kv_proj_;
  RowParallelLinear out_proj_;
};

}  // namespace troupe
