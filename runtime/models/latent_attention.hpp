#pragma once
// Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/models/layers.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

struct LatentAttentionOptions {
  std::size_t layer = 0;  ///< LayerCacheSpec::layer
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  LatentConfig latent;
  float scale = 1;
  bool has_bias = false;              ///< of the matrices that hidden states enter or leave by
  std::int32_t canonical_shards = 1;  ///< of o_proj
  std::shared_ptr<const RopeTables> rope;
};

/// Causal attention of all heads to one latent vector per token, c = norm(x W_c), from which each
/// head has its keys W_k c and its values W_v c, beside a rotated key that all heads share.
///
/// The cache holds the shared key and c. Scores are computed as (q W_k) c, and outputs as W_v (sum
/// of p c): keys and values of the heads are never made ("absorbed"). That is so for prompts too,
/// where expanding them would take fewer products: a token's results must have the same bits in a
/// prompt, in a chunk of it, and when they are generated. Ranks have their heads, and the whole
/// latents.
class LatentAttention final : public Mixer {
 public:
  /// The options are those of the whole layer.
  LatentAttention(WeightLoader& loader, const std::string& name,
                  const LatentAttentionOptions& options);
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;
  [[nodiscard]] std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size,
                                                         DType dtype) const override;

 private:
  /// What hidden states are projected to: the latent of queries (or the queries), the shared key,
  /// the latent of keys and values.
  [[nodiscard]] std::int64_t first_size() const noexcept {
    return latent_.q_rank != 0 ? latent_.q_rank : num_heads_ * query_dim();
  }
  [[nodiscard]] std::int64_t query_dim() const noexcept {
    return latent_.plain_dim + latent_.rotary_dim;
  }
  [[nodiscard]] std::int64_t key_dim() const noexcept {
    return latent_.rotary_dim + latent_.kv_rank;
  }
  /// out: [num_tokens, num_heads, key_dim]: of each query the part that is rotated, and the other
  /// one times W_k.
  void absorb(const LayerStep& step, Matrix queries, Heads out) const;

  std::size_t layer_;
  LatentConfig latent_;
  std::int64_t num_heads_;  ///< of this rank
  float scale_;
  Linear in_proj_;
  RmsNorm q_norm_;
  std::optional<Linear> q_proj_;  ///< from the latent of queries
  RmsNorm kv_norm_;
  std::vector<Linear> key_projs_;    ///< [num_heads]: [kv_rank, plain_dim]
  std::vector<Linear> value_projs_;  ///< [num_heads]: [value_dim, kv_rank]
  AdaptedMatrix adapted_in_;
  AdaptedMatrix adapted_q_;
  std::vector<AdaptedMatrix> adapted_keys_;    ///< of each key_projs_
  std::vector<AdaptedMatrix> adapted_values_;  ///< of each value_projs_
  AdaptedMatrix adapted_o_;
  RowParallelLinear o_proj_;
  std::shared_ptr<const RopeTables> rope_;
};

}  // namespace troupe
