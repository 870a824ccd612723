#pragma once
// Draft heads: a few layers that draft tokens from the hidden states of the target model.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/decoder.hpp"
#include "runtime/models/draft_head_config.hpp"
#include "runtime/models/load_model.hpp"

namespace troupe {

/// At position i its inputs are the model's hidden state of token i and the embedding of token
/// i + 1; its output predicts the hidden state of token i + 1, from which token i + 2 is drafted,
/// and is the state for position i + 1.
///
/// - EAGLE (arXiv 2401.15077): x = fc([embedding, state]), and a layer of llama without its first
///   norm; the model's head, without its final norm, as `state` is behind that.
/// - EAGLE-3 (arXiv 2503.01840): state = fc(inputs of some of the model's layers), and a layer of
///   llama whose attention takes [norm(embedding), norm(state)]; a norm and a head of its own, of
///   fewer tokens.
/// - Multi-token prediction (arXiv 2412.19437, 2.2): x = eh_proj([norm(embedding), norm(state)]), a
///   layer of the model; a norm of its own and the model's head.
///
/// Where the checkpoint has no embedding, or no head, it is the model's. Adapters do not apply.
class DraftHead final : public Model {
 public:
  /// Errors stay in the loader. The target outlives it.
  DraftHead(const DraftHeadConfig& config, Device& device, WeightLoader& loader, Model& target);

  [[nodiscard]] std::int64_t hidden_size() const noexcept override {
    return config_.layers.hidden_size;
  }
  /// Tokens that it can guess: columns of its logits.
  [[nodiscard]] std::int64_t vocab_size() const noexcept override {
    return config_.draft_vocab_size;
  }
  [[nodiscard]] std::int64_t max_model_len() const noexcept override {
    return config_.layers.max_model_len;
  }
  [[nodiscard]] std::int64_t weight_bytes() const noexcept override { return weight_bytes_; }
  [[nodiscard]] std::int32_t canonical_shards() const noexcept override {
    return config_.layers.canonical_shards();
  }
  [[nodiscard]] std::vector<LayerCacheSpec> kv_cache_specs(std::int32_t block_size,
                                                           DType dtype) const override;

  /// It takes Model::kept_layer_inputs() of the target; else its hidden states.
  [[nodiscard]] bool takes_layer_inputs() const noexcept { return !config_.input_layers.empty(); }
  [[nodiscard]] const std::vector<std::int32_t>& input_layers() const noexcept {
    return config_.input_layers;
  }
  [[nodiscard]] bool has_embedding() const noexcept { return embedding_.has_value(); }
  /// Columns of what it takes of the target.
  [[nodiscard]] std::int64_t target_state_size() const noexcept;
  /// [vocab_size]: the ids of the tokens that it can guess; empty: all, in order.
  [[nodiscard]] std::span<const TokenId> token_ids() const noexcept { return token_ids_; }

  /// The states for the next forward(), [num_tokens, columns]: the target's, or of an earlier
  /// forward().
  void set_states(ConstMatrix states, bool are_target_states) noexcept {
    states_ = states;
    are_target_states_ = are_target_states;
  }

  Result<void> reserve(const BatchLimits& limits) override;
  /// The batch has token i + 1 at position i; hidden: guesses of states, before any final norm.
  /// Pre: set_states().
  void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches, Communicator* peers,
               Matrix hidden) override;
  void compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) override;

 private:
  void embed(const ForwardBatch& batch, const ForwardBatch& device_batch, Matrix out);
  /// The head's own states of what set_states() gave.
  void combine_states(Matrix out);
  void copy(ConstMatrix x, Matrix out);
  void load_layers(WeightLoader& loader, const std::string& prefix);
  void load_token_ids(WeightLoader& loader, const std::string& prefix);
  [[nodiscard]] bool is_eagle3() const noexcept { return config_.kind == DraftHeadKind::kEagle3; }

  DraftHeadConfig config_;
  Device& device_;
  ParallelConfig parallel_;
  Model& target_;
  std::optional<EmbeddingTable> embedding_;  // none: the target's
  std::optional<Linear> fc_;                 // none: EAGLE-3 without layers' inputs
  std::optional<RmsNorm> embedding_norm_;    // none: EAGLE
  std::optional<RmsNorm> state_norm_;
  std::vector<DecoderLayer> layers_;
  std::optional<RmsNorm> final_norm_;
  std::optional<Linear> head_;  // none: the target's
  std::vector<TokenId> token_ids_;
  std::int64_t weight_bytes_ = 0;
  DeviceMemory activations_;
  DeviceBatch device_batch_;
  ConstMatrix states_;
  bool are_target_states_ = true;
};

struct LoadedDraftHead {
  LoadedModel loaded;
  DraftHead* head = nullptr;  ///< loaded.model
};

/// Loads a head for `target`, which outlives it, with the layers of one stage; for kMtp, `folder`
/// is the target's. Errors: those of load_model, and what does not fit the target.
Result<LoadedDraftHead> load_draft_head(DraftHeadKind kind, const std::filesystem::path& folder,
                                        const LoadedModel& target, Device& device,
                                        const ModelLoadOptions& options,
                                        const LoadProgressCallback& progress);

}  // namespace troupe
