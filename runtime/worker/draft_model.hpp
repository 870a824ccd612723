#pragma once
// Drafts for speculative decoding from a second, smaller model, or from a draft head.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "messages/cache.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/worker.hpp"
#include "runtime/models/communicator.hpp"
#include "runtime/models/draft_head.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/worker/drafted_blocks.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/input_batch.hpp"
#include "runtime/worker/logit_rows.hpp"
#include "runtime/worker/sampler.hpp"

namespace troupe {

/// Owns a model beside the one that answers, on the same device. Its layers are further layers of
/// the KV cache: a block holds the tokens' keys and values for both models. Behind each step, it
/// computes the tokens that the step has made certain, so that its part of a block is complete when
/// the other model's is, whoever uses the block next; and of every request that has a new token, it
/// guesses the ones behind it. What it writes for guesses is overwritten in the next step.
///
/// While nothing is to be guessed, a model whose layers keep all tokens computes those of several
/// steps at once, as that costs little more than those of one; where the Scheduler limits what it
/// computes (SchedulerOutput::max_draft_rows), those of any number of steps, and those that are
/// missing in blocks which were found in the prefix cache. A model with other layers, or a head,
/// cannot compute what it has missed: a request with a token that is missing, whether it was
/// skipped or was so in the prefix cache, gets no guesses until it is admitted again.
///
/// A draft head (DraftHead) does the same with what the other model makes of its tokens; all of
/// each step, or none (max_draft_rows is 0). Its entry at a position depends on the token behind
/// it, which need not be in the same block: so of blocks that were found in the prefix cache, the
/// last one is computed again (KVCacheSettings::eagle_block_drop).
///
/// A guess is drawn with the request's parameters and the number of the token's position: as the
/// other model would draw it if the models agreed.
///
/// The ranks of the last stage have all its layers, and share them as they share their own. The
/// output rank draws, and tells them.
class DraftModel {
 public:
  /// Loads what options.speculative names, for requests of up to max_model_len tokens of `target`,
  /// which outlives it and has not been reserved. Errors: those of load_model; kInvalidArgument for
  /// another vocabulary, or for a model made for fewer tokens; kUnsupported for one that keeps
  /// states, as these cannot be taken back.
  static Result<std::unique_ptr<DraftModel>> load(const WorkerOptions& options, Device& device,
                                                  LoadedModel& target,
                                                  const LoadProgressCallback& progress);

  /// Whether load() will find what it needs, by the headers of files: before memory is taken for
  /// `target`, which has been checked alone. Errors: those of load().
  static Result<void> check(const WorkerOptions& options, Device& device, LoadedModel& target);

  /// On stages before the last: `target` is to hand on the inputs of its layers that a draft head
  /// takes. Errors: those of load_draft_head_config. Pre: `target` has not been reserved.
  static Result<void> prepare_stage(const WorkerOptions& options, LoadedModel& target);

  [[nodiscard]] const Model& model() const noexcept { return *loaded_.model; }
  [[nodiscard]] std::int64_t mapped_bytes() const noexcept { return loaded_.mapped_bytes(); }
  [[nodiscard]] Result<void> check_files() const { return loaded_.check_files(); }
  /// The type that its checkpoint, or the option, names.
  [[nodiscard]] DType dtype() const noexcept { return loaded_.dtype; }

  /// Null: it is a model.
  [[nodiscard]] const DraftHead* head() const noexcept { return head_; }

  /// Takes the pages of its layers. `tables`: those of the rows that propose() gets. `are_loaded`:
  /// blocks may be loaded from elsewhere; those that a request begins with are taken for complete
  /// then, and where they are not, its guesses are poorer.
  void set_cache(std::vector<LayerKvCache> caches, const BlockTables& tables, bool are_loaded);
  /// Blocks of the cache are copied: source, destination. Pre: set_cache() was called.
  void copy_blocks(std::span<const std::pair<BlockId, BlockId>> blocks) { blocks_->copy(blocks); }

  /// Behind a step, when its tokens have been appended: computes what is certain, and drafts for
  /// the rows that have got a token; as many as there are slots for. All ranks do so; `peers` is
  /// null if there is one, and `model_peers` are the same for data on the device. If their status
  /// is an error then, the drafts mean nothing. `num_drafts`: at most, for each request. `states`:
  /// for a head, what it takes of the other model, a row for each token of the step. Pre:
  /// set_cache() was called; with a head, all tokens of the step are outputs.
  /// `max_rows`: SchedulerOutput::max_draft_rows.
  void propose(std::span<const InputBatch::Row> rows, std::int32_t num_drafts,
               std::int32_t max_rows, ConstMatrix states, Communicator* peers,
               Communicator* model_peers, ModelRunnerOutput& output);

 private:
  /// A request that is being drafted for.
  struct Draft {
    const WorkerRequest* request = nullptr;
    SamplingState sampling;
    std::size_t num_wanted = 0;
    std::vector<TokenId> token_ids;
    std::int64_t row = 0;  ///< of the last pass' hidden states
  };

  DraftModel(const WorkerOptions& options, Device& device, LoadedModel loaded, DraftHead* head)
      : options_(options), device_(device), loaded_(std::move(loaded)), head_(head) {}
  /// The draft model or head, not yet reserved.
  static Result<LoadedDraftHead> load_layers(const WorkerOptions& options, Device& device,
                                             LoadedModel& target, bool only_checks,
                                             const LoadProgressCallback& progress);
  Result<void> reserve_memory(std::int64_t vocab_size);
  /// The tokens that the step has made certain, as far as there are slots, and the model may
  /// compute so many. Reports what the requests still lack.
  void add_certain_tokens(std::span<const InputBatch::Row> rows, std::int32_t num_drafts,
                          std::int32_t max_rows, ConstMatrix states, DraftReport& report);
  /// The last guess of each of drafts_.
  void add_guesses();
  /// How many guesses the request gets behind its step. num_slots: those it has blocks for.
  [[nodiscard]] std::int64_t num_wanted(const InputBatch::Row& row, std::int32_t num_drafts,
                                        std::int64_t num_slots) const;
  /// states_ from row `to` on = these; on the device.
  void copy_states(ConstMatrix states, std::int64_t to);
  void forward(bool takes_target_states, DraftReport& report);
  /// One token for each of drafts_; those that have enough, or get none, go to the output.
  void draw(ModelRunnerOutput& output);
  /// The next token of each of these, whose hidden states are given; kNoToken: there is none.
  /// False: the output rank did not tell.
  bool draw_tokens(std::span<const Draft> drafts, ConstMatrix hidden);
  /// A row of logits over the whole vocabulary.
  [[nodiscard]] std::span<float> whole_vocabulary(std::span<float> logits);
  /// What the output rank has drawn, on all ranks of the stage; false: it did not come.
  bool share_drawn();
  /// Tokens of a request that may wait for those behind them.
  static constexpr std::int32_t kMaxBehind = 16;

  /// Requests that a step can draft for.
  [[nodiscard]] std::int64_t max_num_drafts() const noexcept {
    return std::max(options_.max_num_seqs, 1);
  }

  WorkerOptions options_;
  Device& device_;
  LoadedModel loaded_;
  DraftHead* head_;              // loaded_'s model, if it is one
  std::int64_t max_behind_ = 0;  // kMaxBehind, or none may wait
  std::int64_t max_tokens_ = 0;  // of a pass
  std::vector<LayerKvCache> caches_;
  const BlockTables* tables_ = nullptr;
  std::optional<FlatBatch> batch_;       // none before set_cache
  std::optional<DraftedBlocks> blocks_;  // likewise
  bool are_loaded_ = false;              // blocks
  Sampler sampler_;
  std::vector<Draft> drafts_;  // of each, the hidden state of its last token is asked for
  std::vector<TokenId> drawn_;
  Communicator* peers_ = nullptr;        // of the current propose()
  Communicator* model_peers_ = nullptr;  // likewise
  DeviceMemory hidden_;                  // [max_num_drafts, hidden_size]
  DeviceMemory states_;                  // of a head's next pass, one row for each token
  LogitRows row_logits_;
  std::vector<float> whole_logits_;  // [vocabulary of the other model]
  Matrix step_hidden_;               // of the current pass, in hidden_: row i is that of drafts_[i]
};

}  // namespace troupe
