#pragma once
// A decoder-only language model, loaded: from a batch of tokens to logits.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/ops.hpp"
#include "kernels/tensor.hpp"
#include "messages/cache.hpp"
#include "messages/ids.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/adapter.hpp"
#include "runtime/models/communicator.hpp"
#include "runtime/models/kv_blend.hpp"
#include "runtime/models/layer_hook.hpp"

namespace troupe {

/// The tokens of one step, of all its sequences one behind the other. The tokens of a sequence are
/// its last ones; what came before them is in the KV cache.
struct ForwardBatch {
  /// What the attention layers of one KV-cache group share.
  struct Group {
    /// [num_tokens]: where K and V go; of cross attention [encoder_inputs.rows.size()].
    const std::int64_t* slots = nullptr;
    std::size_t num_slots = 0;
    const std::int32_t* block_tables = nullptr;  ///< [rows, block_table_stride]
    std::int64_t block_table_stride = 0;
    const std::size_t* num_blocks = nullptr;  ///< [rows]: of each row, those that are used
    /// Of layers that keep states. [num_seqs]: the block with the state that a sequence goes on
    /// from; the null block: it begins.
    const BlockId* states_before = nullptr;
    /// [num_tokens]: the block for the state behind that token; the null block: it is not kept.
    /// Those behind a sequence's last token are, and where tokens are drafts, behind each place to
    /// which the sequence may go back.
    const BlockId* states_after = nullptr;
  };
  /// Rows that stand in place of tokens' embeddings, as they are: what an encoder made of images.
  struct InputEmbeddings {
    std::span<const std::int32_t> tokens;  ///< whose: indices in the batch, ascending
    std::span<const std::int32_t> rows;    ///< [tokens.size()]: which of `outputs`
    ConstMatrix outputs;                   ///< [num_rows, hidden_size], in the device's memory
  };

  /// Of models whose tokens attend to what an encoder made of their request's input.
  struct EncoderInputs {
    std::span<const std::int32_t> rows;  ///< of `outputs`: what the step adds to the cache
    ConstMatrix outputs;                 ///< [num_rows, hidden_size], in the device's memory
    /// For kernels, to which each token is the last of a sequence of its own, of the encoder's
    /// rows.
    std::span<const std::int32_t> starts;      ///< [num_tokens + 1]: 0, 1, 2, ...
    std::span<const std::int32_t> lens;        ///< [num_tokens]: rows of the token's input
    std::span<const std::int32_t> table_rows;  ///< [num_tokens]: as block_table_rows
  };

  std::span<const TokenId> token_ids;       ///< [num_tokens]
  std::span<const std::int32_t> positions;  ///< [num_tokens]
  /// [num_tokens]: 1 for those of the second text of a pair, else 0. Empty: all are 0.
  std::span<const std::int32_t> token_types = {};
  std::span<const std::int32_t> query_start_loc;  ///< [num_seqs + 1]
  std::span<const std::int32_t> seq_lens;         ///< [num_seqs], this step's tokens included
  /// [num_seqs + 1]: of sequence s the last output_start_loc[s + 1] - output_start_loc[s] tokens
  /// are those whose hidden states are asked for; of the others K and V are all that is needed.
  std::span<const std::int32_t> output_start_loc;
  std::span<const std::int32_t> block_table_rows;  ///< [num_seqs]: the same in all groups
  /// [rows]: a row of the same number as before has the blocks that it had, and perhaps more.
  const std::uint64_t* block_table_row_ids = nullptr;
  std::span<const Group> groups;
  InputEmbeddings input_embeddings;
  EncoderInputs encoder_inputs;
  /// As AttentionArgs has them; empty: all is causal. A span is never cut: what of it the batch
  /// computes includes its end.
  std::span<const TwoWaySpan> two_way_spans;
  std::span<const std::int32_t> span_start_loc;  ///< [num_seqs + 1], unless there are none
  std::span<const std::int32_t> adapter_ids;     ///< [num_seqs]: of each its adapter; 0: none
  std::span<const Adapter* const> adapters;      ///< the same, null for none; empty: all have none
  std::span<LayerHook* const> layer_hooks;       ///< called around each layer; usually none
  KvBlend* kv_blend = nullptr;                   ///< Pre: Model::check_blend() allows it

  [[nodiscard]] std::int64_t num_tokens() const noexcept {
    return static_cast<std::int64_t>(token_ids.size());
  }
  [[nodiscard]] std::int64_t num_outputs() const noexcept { return output_start_loc.back(); }
};

/// The latent vectors of one layer with MLA: num_blocks pages of block_bytes() each, page b at data
/// + b * page_stride(), one vector per token and KV head. How a page is laid out inside belongs to
/// the layer.
struct LatentCacheView {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t dim = 0;
  std::int64_t padded_page_bytes = 0;  ///< 0: a page ends with its content

  [[nodiscard]] constexpr std::int64_t block_bytes() const noexcept {
    return num_kv_heads * block_size * (dim * element_bytes(type) + scale_bytes(type));
  }
  [[nodiscard]] constexpr std::int64_t page_stride() const noexcept {
    return padded_page_bytes != 0 ? padded_page_bytes : block_bytes();
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

/// One item for a model's encoder, as its processor left it: the pixels of an image, the features
/// of a sound.
struct EncoderItem {
  std::string_view modality;            ///< MultiModalFeature::modality
  std::span<const float> values;        ///< row major
  std::span<const std::int64_t> shape;  ///< of values
  std::int64_t num_rows = 0;            ///< placeholder tokens that it is for
};

/// The largest batch that a model must be ready for.
struct BatchLimits {
  std::int64_t max_num_tokens = 0;
  std::int64_t max_num_logit_rows = 0;
  std::optional<AdapterLimits> adapters = std::nullopt;  ///< none: batches have no adapters
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

  /// The tokens of an image see each other, also those behind them (ForwardBatch::two_way_spans).
  [[nodiscard]] virtual bool sees_items_both_ways() const noexcept { return false; }

  /// An encoder: all tokens of a text see each other, and none is generated.
  [[nodiscard]] virtual bool is_encoder() const noexcept { return false; }

  /// What adapters may update on this rank; null: they cannot be used with the model.
  [[nodiscard]] virtual const AdapterTargets* adapter_targets() const noexcept { return nullptr; }

  /// From now on forward() keeps what goes into these layers, of all tokens: for a draft head.
  /// Errors: kUnsupported, such a model does not. Pre: ascending; before reserve(); all stages are
  /// told, and each hands on what it has.
  virtual Result<void> keep_layer_inputs(std::vector<std::int32_t> layers);
  /// Of the last batch, on the last stage: [num_tokens, layers * hidden_size].
  [[nodiscard]] virtual ConstMatrix kept_layer_inputs() const;
  /// out[t] = the embedding of the t-th token of the batch as it is stored, for a draft head that
  /// has none; device_batch is `batch` with addresses that kernels read.
  virtual void embed_tokens(const ForwardBatch& batch, const ForwardBatch& device_batch,
                            Matrix out);
  /// Whether batches may have a KvBlend. Errors: kUnsupported, naming the layer and its kind.
  [[nodiscard]] virtual Result<void> check_blend() const;

  /// Takes the activation memory for such batches. Errors: kIo.
  virtual Result<void> reserve(const BatchLimits& limits) = 0;

  /// hidden[i]: the state behind the final norm of the i-th token that is asked for,
  /// [num_outputs, hidden_size]. K and V of all tokens are written to the cache. Pre: reserve() was
  /// called, the batch keeps its limits, positions are below max_model_len, token ids below
  /// vocab_size.
  /// `peers` are the other ranks, null if there are none: all of them do the same; `hidden` is
  /// filled on the last stage, and nothing counts if `peers` has failed.
  virtual void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches,
                       Communicator* peers, Matrix hidden) = 0;
  /// The most rows that an item has, on ranks of the first stage; 0: the model has no encoder.
  [[nodiscard]] virtual std::int64_t max_item_rows() const noexcept { return 0; }
  /// Whether encode_slice() can take the item. Errors: kUnsupported, there is no encoder for its
  /// modality; kInvalidArgument, its shape, or the number of its rows.
  [[nodiscard]] virtual Result<void> check_item(const EncoderItem& item) const;
  /// The pieces in which an item is encoded, each a small part of the work.
  [[nodiscard]] virtual std::int64_t num_item_slices() const noexcept { return 0; }
  /// Slice `slice` of the encoding of an item; forward() may be called between two of them. The
  /// last one fills `out`: the rows that stand in place of the item's placeholder tokens
  /// (InputEmbeddings), [EncoderItem::num_rows, hidden_size], in the device's memory. Each rank of
  /// the first stage computes all of them, so they are the same bits there. Pre: check_item();
  /// reserve(); the slice before, of this item, was the last call.
  virtual void encode_slice(const EncoderItem& item, std::int64_t slice, Matrix out);
  /// The vector of one text, of the hidden states of its tokens, which are in the host's memory:
  /// for kLast the last of them alone will do. [hidden_size], or of a classifier a number for each
  /// class.
  [[nodiscard]] virtual std::vector<float> pool(PoolingType type, ConstMatrix hidden) const;
  /// out = hidden W^T of the head: [num_rows, vocab_size]. By all ranks of the last stage; the
  /// first of them gets all columns, on the others `out` is not used. `hidden`: rows that forward()
  /// gave, or other states.
  virtual void compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) = 0;
};

}  // namespace troupe
