#pragma once
// What all decoder-only transformers share: embedding, a stack of layers, final norm, head. An
// architecture adds its layers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/models/classification_head.hpp"
#include "runtime/models/device_batch.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/layers.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/narrowed_batch.hpp"

namespace troupe {

/// A mixer between its norms: residual + scale post_norm(mixer(norm(residual))).
struct NormedMixer {
  RmsNorm norm;
  std::unique_ptr<const Mixer> mixer;
  std::optional<RmsNorm> post_norm;  ///< of what is added; none: it is added as it is
  float scale = 1;
};

/// One layer of a decoder: a list of mixers with their norms. The residual stream is kept as a sum
/// not yet carried out, residual + x, so that each norm does the addition before it on its way: x
/// is what the previous mixer (or the embedding) adds.
class DecoderLayer {
 public:
  /// Pre: not empty. The first mixer takes all tokens and gives the rows of the step's queries,
  /// those behind it take these.
  explicit DecoderLayer(std::vector<NormedMixer> mixers) : mixers_(std::move(mixers)) {}

  /// residual += x; x = what this layer adds; `normed` is scratch: all [num_tokens, hidden_size].
  /// The first num_queries rows of residual and x are then those of the step's queries.
  void forward(const LayerStep& step, Matrix residual, Matrix x, Matrix normed) const;
  /// The same of a layer whose first mixer takes `input`, and no norm: nothing is added to residual
  /// before that.
  void forward(const LayerStep& step, ConstMatrix input, Matrix residual, Matrix x,
               Matrix normed) const;
  /// The most that any of its mixers takes.
  [[nodiscard]] MixerMemory memory(Device& device, const MixerLimits& limits) const noexcept;
  /// Appends what its mixers need of the KV cache.
  void add_cache_specs(std::int32_t block_size, DType dtype,
                       std::vector<LayerCacheSpec>& specs) const;
  /// Of its mixers that have a cache, with the kind of it.
  [[nodiscard]] std::string blend_obstacle() const;

 private:
  std::vector<NormedMixer> mixers_;
};

/// What every architecture's attention takes from the configuration: sizes, scale, window of layer
/// `layer`. The architecture adds biases and norms.
[[nodiscard]] AttentionOptions attention_options(const ModelConfig& config, std::size_t layer,
                                                 std::shared_ptr<const RopeTables> rope);

/// What checkpoints call the tensors around a decoder's layers.
struct DecoderNames {
  std::string_view embedding = "embed_tokens";
  std::string_view final_norm = "norm";
};

/// Where a checkpoint keeps the decoder's tensors: the prefix of the embedding among those that
/// published checkpoints use ("model.", none, two under a language model's name, and "backbone.").
[[nodiscard]] std::string weight_prefix(const WeightLoader& loader, const DecoderNames& names = {});

/// The layers of this rank's stage, in order; those of the others are not missed.
[[nodiscard]] std::vector<std::size_t> layers_to_load(const ModelConfig& config,
                                                      WeightLoader& loader,
                                                      const DecoderNames& names = {});

/// Layers behind the last one that guess further tokens (MTP) are not missed.
void ignore_mtp_layers(const ModelConfig& config, WeightLoader& loader);

/// How an architecture differs from the plain stack.
struct DecoderOptions {
  NormStyle norm;
  float embedding_scale = 1;
  float logit_scale = 1;
  float logit_softcap = 0;     ///< c > 0: logits become c tanh(logit / c)
  bool two_way_items = false;  ///< Model::sees_items_both_ways
  DecoderNames names = {};
};

class DecoderModel final : public Model {
 public:
  /// Loads embedding, final norm and head, where this rank's stage has them; `layers` are loaded
  /// already, and so is `tower`, or null: the model takes text alone.
  DecoderModel(const ModelConfig& config, Device& device, WeightLoader& loader,
               std::vector<DecoderLayer> layers, DecoderOptions options,
               std::unique_ptr<const ItemTower> tower = nullptr);

  [[nodiscard]] std::int64_t hidden_size() const noexcept override { return config_.hidden_size; }
  [[nodiscard]] std::int64_t vocab_size() const noexcept override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t max_model_len() const noexcept override {
    return config_.max_model_len;
  }
  [[nodiscard]] std::int64_t weight_bytes() const noexcept override { return weight_bytes_; }
  [[nodiscard]] std::int32_t canonical_shards() const noexcept override {
    return config_.canonical_shards();
  }
  [[nodiscard]] std::vector<LayerCacheSpec> kv_cache_specs(std::int32_t block_size,
                                                           DType dtype) const override;
  [[nodiscard]] bool sees_items_both_ways() const noexcept override {
    return options_.two_way_items;
  }
  [[nodiscard]] std::int64_t max_item_rows() const noexcept override;
  [[nodiscard]] Result<void> check_item(const EncoderItem& item) const override;
  [[nodiscard]] std::int64_t num_item_slices() const noexcept override;
  void encode_slice(const EncoderItem& item, std::int64_t slice, Matrix out) override;
  [[nodiscard]] const AdapterTargets* adapter_targets() const noexcept override {
    return &adapter_targets_;
  }
  Result<void> keep_layer_inputs(std::vector<std::int32_t> layers) override;
  [[nodiscard]] ConstMatrix kept_layer_inputs() const override { return step_inputs_; }
  void embed_tokens(const ForwardBatch& batch, const ForwardBatch& device_batch,
                    Matrix out) override;
  [[nodiscard]] Result<void> check_blend() const override;
  Result<void> reserve(const BatchLimits& limits) override;
  void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches, Communicator* peers,
               Matrix hidden) override;
  [[nodiscard]] std::vector<float> pool(PoolingType type, ConstMatrix hidden) const override;
  void compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) override;

 private:
  /// The residual stream of the current tokens: what is to be summed, and scratch.
  struct Stream {
    Matrix residual;
    Matrix x;
    Matrix normed;
  };
  /// The layer's keys and values of all current tokens are in the cache: those tokens go on that
  /// the step's KvBlend selects. Adds x to the residual. The batch of those tokens.
  const ForwardBatch& select_tokens(const DecoderLayer& layer, std::int32_t number,
                                    const LayerStep& step, const ForwardBatch& whole,
                                    const Stream& stream);
  /// What is left of the batch on the stage before.
  const ForwardBatch& receive_selection(const ForwardBatch& whole, Communicator& peers);
  void send_selection(Communicator& peers, std::int32_t to) const;
  /// What this rank's rows of the head give for `hidden`; where these are outputs of the last
  /// batch, with their adapters.
  void apply_head(ConstMatrix hidden, Matrix out);
  /// Scales and caps the logits of the whole vocabulary, where the architecture does so.
  void scale_logits(Matrix logits);
  /// out[t] = the embedding of the t-th token, scaled, or the row given in its place; device_batch
  /// is `batch` with addresses that kernels read.
  void embed(const ForwardBatch& batch, const ForwardBatch& device_batch, Matrix out);
  /// Rows of the table times `scale`.
  void embed_rows(const ForwardBatch& batch, const ForwardBatch& device_batch, float scale,
                  Matrix out);
  /// The same of a table in blocks of GGUF, which the host widens.
  void embed_blocks(std::span<const TokenId> ids, float scale, Matrix out);
  /// Keeps what goes into layer `number`, residual + x, where that is asked for.
  void keep_inputs(const LayerStep& step, std::int32_t number, Matrix residual, Matrix x);

  ModelConfig config_;
  Device& device_;
  ParallelConfig parallel_;
  DecoderOptions options_;
  std::unique_ptr<const ItemTower> tower_;  ///< null: there is none, or not on this rank
  std::vector<DecoderLayer> layers_;
  EmbeddingTable embedding_;
  std::vector<float> embedded_;  ///< rows on their way to the device
  RmsNorm final_norm_;
  Linear head_;                                ///< rows of this rank
  std::optional<ClassificationHead> classes_;  ///< of a classifier
  AdaptedMatrix adapted_embedding_;
  AdaptedMatrix adapted_head_;
  AdapterTargets adapter_targets_;
  std::int64_t weight_bytes_ = 0;
  std::vector<std::int32_t> kept_layers_;  ///< whose inputs are kept
  DeviceMemory kept_inputs_;
  DeviceMemory activations_;
  DeviceBatch device_batch_;
  AdapterBatch adapter_batch_;
  NarrowedBatch narrowed_;
  std::vector<std::int32_t> current_;     ///< tokens of narrowed_; empty: no batch of it counts
  std::vector<std::int32_t> no_queries_;  ///< zeros
  bool has_adapters_ = false;             ///< the last batch had
  ConstMatrix step_outputs_;              ///< of the last batch
  Matrix step_inputs_;                    ///< likewise, in kept_inputs_
};

}  // namespace troupe
