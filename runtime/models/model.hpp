#pragma once
// A decoder-only language model, loaded: from a batch of tokens to logits.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "kernels/tensor.hpp"
#include "messages/cache.hpp"
#include "messages/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/communicator.hpp"

namespace troupe {

/// The tokens of one step, of all its sequences one behind the other. The tokens of a sequence are
/// its last ones; what came before them is in the KV cache.
struct ForwardBatch {
  /// What the attention layers of one KV-cache group share.
  struct Group {
    const std::int64_t* slots = nullptr;         ///< [num_tokens]: where K and V go
    const std::int32_t* block_tables = nullptr;  ///< [rows, block_table_stride]
    std::int64_t block_table_stride = 0;
  };

  std::span<const TokenId> token_ids;             ///< [num_tokens]
  std::span<const std::int32_t> positions;        ///< [num_tokens]
  std::span<const std::int32_t> query_start_loc;  ///< [num_seqs + 1]
  std::span<const std::int32_t> seq_lens;         ///< [num_seqs], this step's tokens included
  /// [num_seqs + 1]: of sequence s the last output_start_loc[s + 1] - output_start_loc[s] tokens
  /// are those whose hidden states are asked for; of the others K and V are all that is needed.
  std::span<const std::int32_t> output_start_loc;
  std::span<const std::int32_t> block_table_rows;  ///< [num_seqs]: the same in all groups
  std::span<const Group> groups;

  [[nodiscard]] std::int64_t num_tokens() const noexcept {
    return static_cast<std::int64_t>(token_ids.size());
  }
  [[nodiscard]] std::int64_t num_outputs() const noexcept { return output_start_loc.back(); }
};

/// The latent vectors of one layer with MLA: num_blocks pages of block_bytes() each, one vector per
/// token and KV head. How a page is laid out inside belongs to the layer.
struct LatentCacheView {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t dim = 0;

  [[nodiscard]] constexpr std::int64_t block_bytes() const noexcept {
    return num_kv_heads * block_size * (dim * element_bytes(type) + scale_bytes(type));
  }
};

/// The states of one layer: that of block b in state_bytes bytes at data + b * page_bytes. What a
/// state holds belongs to the layer.
struct StateCacheView {
  std::byte* data = nullptr;
  std::int64_t num_blocks = 0;
  std::int64_t state_bytes = 0;
  std::int64_t page_bytes = 0;
};

/// What one layer has of the cache, by its KVCacheSpec's kind, and the group whose block tables
/// lead to it. Nothing: the layer has no cache, or is another stage's.
struct LayerKvCache {
  std::variant<std::monostate, KvCacheView, LatentCacheView, StateCacheView> pages;
  std::size_t group = 0;
};

/// The largest batch that a model must be ready for.
struct BatchLimits {
  std::int64_t max_num_tokens = 0;
  std::int64_t max_num_logit_rows = 0;
};

/// Owns weights and activation buffers. The model runner calls it, one thread at a time.
class Model {
 public:
  virtual ~Model() = default;

  [[nodiscard]] virtual std::int64_t hidden_size() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t vocab_size() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t max_model_len() const noexcept = 0;
  /// Bytes of the packed weights; the embedding table stays in the mapped file.
  [[nodiscard]] virtual std::int64_t weight_bytes() const noexcept = 0;
  /// Parts in which every row-parallel layer is reduced; see WeightSpec::k_shards.
  [[nodiscard]] virtual std::int32_t canonical_shards() const noexcept = 0;
  /// Of the layers of this rank's stage that have a cache, in order; of each the heads of this
  /// rank.
  [[nodiscard]] virtual std::vector<LayerCacheSpec> kv_cache_specs(std::int32_t block_size,
                                                                   DType dtype) const = 0;

  /// Takes the activation memory for such batches. Returns its bytes. Errors: kIo.
  virtual Result<std::int64_t> reserve(const BatchLimits& limits) = 0;

  /// hidden[i]: the state behind the final norm of the i-th token that is asked for,
  /// [num_outputs, hidden_size]. K and V of all tokens are written to the cache. Pre: reserve() was
  /// called, the batch keeps its limits, positions are below max_model_len, token ids below
  /// vocab_size.
  /// `peers` are the other ranks, null if there are none: all of them do the same; `hidden` is
  /// filled on the last stage, and nothing counts if `peers` has failed.
  virtual void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches,
                       Communicator* peers, Matrix hidden) = 0;
  /// out = hidden W^T of the head: [num_rows, vocab_size]. By all ranks of the last stage; the
  /// first of them gets all columns, on the others `out` is not used.
  virtual void compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) = 0;
};

}  // namespace troupe
