#pragma once
// Running a model for the Scheduler: one SchedulerOutput in, one ModelRunnerOutput out.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/cache.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/communicator.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/worker/adapter_cache.hpp"
#include "runtime/worker/draft_model.hpp"
#include "runtime/worker/ec_connector_worker.hpp"
#include "runtime/worker/input_batch.hpp"
#include "runtime/worker/item_encoder.hpp"
#include "runtime/worker/logit_rows.hpp"
#include "runtime/worker/ngram_proposer.hpp"
#include "runtime/worker/sampler.hpp"
#include "runtime/worker/step_extension.hpp"
#include "runtime/worker/suffix_proposer.hpp"

namespace troupe {

/// Owns a device with a model, its KV cache, and the state of the requests in flight. The Worker
/// actor calls it: load, initialize_kv_cache once, then execute step after step, on one thread.
///
/// A request's tokens and log-probabilities do not depend, bit for bit, on what else is in a step
/// or on how its tokens are spread over steps and blocks: the kernels are batch-invariant, and a
/// token is drawn by the request's key and the token's position. Nor on how many ranks share the
/// model, nor on drafts: a draft counts if it is the very token that is sampled in its place.
///
/// Of several ranks, each runs every step: it computes its layers and heads, and hands on what the
/// others need. The output rank samples and sends the tokens to all others; these take them when a
/// step asks for them, so that the stages of a pipeline work on different steps at the same time.
class ModelRunner {
 public:
  /// Loads the model of options.model. With options.numa_bind the calling thread stays bound to its
  /// share of the NUMA nodes. Errors: those of load_model and Device::create, and
  /// kInvalidArgument for options; kUnsupported for what the device cannot do.
  static Result<std::unique_ptr<ModelRunner>> load(const WorkerOptions& options,
                                                   const LoadProgressCallback& progress);

  /// Transcripts follow the TranscriptionRules of the model, if it transcribes, where otherwise the
  /// logits are the model's own (as replays of a reference's logits need them). Pre: the caches are
  /// not made yet. Errors: those of load_transcription_rules.
  Result<void> follow_transcription_rules();
  /// What was loaded, for planning the KV cache: available_bytes is what the machine has left when
  /// the largest step is under way.
  [[nodiscard]] ModelLoaded describe() const;
  /// Takes the memory for the cache, leaves the other ranks, and forgets all requests. Pages are
  /// zero until written and take no physical memory before. Errors: kIo, kUnsupported (pages
  /// of another size than a layer's). Pre: every attention layer is in one group, with the spec it
  /// asked for.
  Result<void> initialize_kv_cache(const KVCacheConfig& config);

  /// Runs a short request that nobody sent, prefill and decode, as all ranks do at once: weights
  /// and buffers are in memory then. The extensions and connectors do not see it. What it leaves in
  /// the cache counts for nothing. Errors: those of execute(). Pre: there is a cache, and the ranks
  /// have met.
  Result<void> warm_up();

  /// Meets the other ranks, where there are any; what was left of an earlier meeting is given up.
  /// Errors: kUnavailable naming who did not come in time.
  Result<void> join_group(const JoinGroup& join);
  /// This rank's step has failed: so it has on the others.
  void fail_group(const Error& reason);

  /// Takes ownership until the runner ends. Pre: no step is open.
  void add_extension(std::unique_ptr<StepExtension> extension);

  /// Outputs of the encoder are loaded and saved by it; what it reports comes with the results.
  /// Does nothing on ranks that have no encoder. Errors: those of register_caches. Pre: no step is
  /// open.
  Result<void> set_ec_connector(std::unique_ptr<ECConnectorWorker> connector);
  /// Null: there is none. Afterwards nothing is loaded or saved.
  [[nodiscard]] std::unique_ptr<ECConnectorWorker> take_ec_connector() noexcept {
    return std::exchange(ec_connector_, nullptr);
  }
  /// Null: this rank has no encoder.
  [[nodiscard]] const ItemEncoder* encoder() const noexcept {
    return encoder_ ? &*encoder_ : nullptr;
  }

  /// The adapters that this rank has loaded; null: there are none (AdapterOptions::enabled).
  [[nodiscard]] AdapterCache* adapters() noexcept { return adapters_ ? &*adapters_ : nullptr; }

  /// Computes a step's hidden states, block copies and zeroing first. What it samples is
  /// sample_tokens()'s to find, so that what grammars allow can be found out meanwhile; it comes
  /// before the next step.
  /// Errors: kUnavailable (no cache yet; other ranks that have failed or are gone), kTimeout (other
  /// ranks), kInternal (the step before has not been sampled; it has failed as well). CHECKs what
  /// the Scheduler must keep: known ids, block tables that cover the tokens, at most
  /// max_num_batched_tokens tokens.
  Result<void> execute_model(const SchedulerOutput& step);
  /// The step that has been computed and not yet sampled.
  [[nodiscard]] std::optional<std::uint64_t> open_step() const noexcept { return open_step_; }
  /// Samples the open step, whose requests' grammars allow what `grammar` says; those that it does
  /// not name have none. Log-probabilities of a prompt are
  /// delivered, all of them, with the first token that follows it; once more, and again all of
  /// them, if the request lost its blocks and computes its prompt anew. A request whose logits are
  /// not finite, or whose parameters forbid every token, is reported in request_errors and gets no
  /// token; the others are not affected.
  /// Errors: those of other ranks, as above. Pre: open_step() is grammar.step. CHECKs that the mask
  /// has a row for each place where a token is sampled, as wide as the vocabulary.
  Result<ModelRunnerOutput> sample_tokens(const GrammarOutput& grammar);
  /// Both at once, for a step without grammars.
  Result<ModelRunnerOutput> execute(const SchedulerOutput& step);
  /// The device works and the files of the weights are whole. Errors: kInternal, or kIo, one was
  /// cut or cannot be read; from then on execute() fails with the same, and only another runner
  /// helps.
  [[nodiscard]] Result<void> check_health() const {
    RETURN_IF_ERROR(device_->status());
    RETURN_IF_ERROR(loaded_.check_files());
    return draft_model_ == nullptr ? Result<void>() : draft_model_->check_files();
  }

 private:
  [[nodiscard]] bool is_output_rank() const noexcept;
  [[nodiscard]] bool has_draft_head() const noexcept {
    return draft_model_ != nullptr && draft_model_->head() != nullptr;
  }
  Result<void> compute(const SchedulerOutput& step);
  /// Loads what the EC connector has; encodes what the step is to encode, and what its tokens need
  /// and is not there; then slices of what is encoded ahead.
  Result<void> encode_items(const SchedulerOutput& step);
  /// Finds the adapters of the step's sequences. A request whose adapter a rank of the group cannot
  /// have gets an error in place of a token. Errors: those of the peers.
  Result<void> find_adapters(const SchedulerOutput& step, std::span<const std::int32_t> ids);
  Result<void> run_warm_up_steps();
  Result<ModelRunnerOutput> sample(const GrammarOutput& grammar);
  /// Takes what the output rank sampled in the steps before, as far as this step touches it.
  void take_samples(const SchedulerOutput& step);
  /// Takes all that has been sampled.
  void take_all_samples();
  bool take_oldest_samples();
  /// Those that a model works with.
  [[nodiscard]] Communicator* model_peers() const noexcept {
    return device_peers_ != nullptr ? device_peers_.get() : peers_.get();
  }
  void leave_group();
  /// What other ranks and the device say of the step. Waits for the device.
  [[nodiscard]] Result<void> step_status();
  void send_samples(std::span<const InputBatch::Row> rows);
  ModelRunner(WorkerOptions options, std::unique_ptr<Device> device, LoadedModel loaded);
  Result<void> reserve_memory();
  /// One per layer: the model's, then those of a draft model.
  [[nodiscard]] std::vector<LayerCacheSpec> kv_cache_specs() const;
  [[nodiscard]] KVCacheMemory cache_memory();
  void move_blocks(const SchedulerOutput& step);
  void score_and_sample(std::span<const InputBatch::Row> rows, const GrammarOutput& grammar,
                        ModelRunnerOutput& output);
  Result<void> pool_texts(std::span<const InputBatch::Row> rows, ModelRunnerOutput& output);
  Result<void> score_prompt(const InputBatch::Row& row, LogprobRows& scores);
  std::int32_t sample_row(const InputBatch::Row& row, std::span<const std::int32_t> bitmask,
                          ModelRunnerOutput& output);
  void draft_tokens(std::span<const InputBatch::Row> rows, ModelRunnerOutput& output);
  /// Logits of row `output` of step_hidden_: [vocab_size], until the next call; they are those on
  /// the output rank only. They are computed for several rows at once, of those in needed_logits_,
  /// so all ranks of the last stage ask for the same rows of a step, in ascending order.
  std::span<float> logits_of(std::int32_t output);
  /// Gives each row what its grammar allows.
  void take_bitmasks(std::span<const InputBatch::Row> rows, const GrammarOutput& grammar);
  /// Of the step's outputs, those whose logits are needed, and those that only a token is drawn of:
  /// neither drafts nor a grammar nor log-probabilities.
  void find_needed_logits(std::span<const InputBatch::Row> rows);
  /// Draws from those of step_logits_, on all threads.
  void draw_tokens();

  WorkerOptions options_;
  std::unique_ptr<Device> device_;  // outlives the model
  LoadedModel loaded_;
  PoolerConfig pooler_;
  std::shared_ptr<const TranscriptionRules> transcription_;  // null: none are followed

  KVCacheConfig cache_config_;
  /// A tensor of the pool; all zero if only layers of other stages use it.
  struct CacheTensor {
    std::int64_t offset = 0;  // bytes, in cache_
    std::int64_t page_bytes = 0;
  };
  std::vector<CacheTensor> cache_tensors_;
  DeviceMemory cache_;
  std::vector<LayerKvCache> layer_caches_;

  std::unique_ptr<Communicator> peers_;  // null: none, or they have not met
  /// For data on the device; null: there `peers_` moves them as well.
  std::unique_ptr<Communicator> device_peers_;
  /// Of a request in a step: how many tokens another rank sends, kNoToken behind the last one.
  struct AwaitedSamples {
    RequestId id{};
    std::size_t num_slots = 0;
  };
  std::deque<std::vector<AwaitedSamples>> awaited_samples_;  // per step, in the order of its batch
  std::uint64_t num_samples_taken_ = 0;                      // lists before the front of these
  std::vector<TokenId> step_samples_;

  std::vector<std::unique_ptr<StepExtension>> extensions_;
  std::vector<LayerHook*> layer_hooks_;   // of extensions_, those with layer hooks
  KvBlend* kv_blend_ = nullptr;           // of extensions_; null: there is none
  std::optional<InputBatch> batch_;       // none before initialize_kv_cache
  std::optional<AdapterCache> adapters_;  // none: requests have no adapters
  std::vector<const Adapter*> step_adapters_;
  std::map<RequestId, Error> adapter_errors_;  // of the current step
  std::optional<ItemEncoder> encoder_;         // none: the model has none, or another stage has it
  std::unique_ptr<ECConnectorWorker> ec_connector_;  // null: there is none
  std::optional<NgramProposer> proposer_;            // none: nothing is looked up
  std::optional<SuffixProposer> suffix_proposer_;    // none: the same
  std::unique_ptr<DraftModel> draft_model_;          // null: there is none
  DeviceMemory hidden_;                              // [max_num_batched_tokens, hidden_size]
  LogitRows row_logits_;
  std::optional<std::uint64_t> open_step_;  // computed, and not yet sampled
  std::int32_t num_drafts_to_make_ = 0;     // per request, behind the current step
  std::int32_t max_draft_rows_ = 0;         // of the draft model, likewise
  Matrix step_hidden_;             // of the current step, in hidden_: the tokens that are asked for
  Matrix step_logits_;             // of rows of step_hidden_ side by side, on the host
  std::int32_t first_logits_ = 0;  // the first of these rows
  std::vector<bool> needed_logits_;
  /// By row: what a grammar allows in each place, one row of words behind the other; empty:
  /// anything.
  std::vector<std::span<const std::int32_t>> bitmasks_;
  std::vector<const SamplingState*> drawn_from_;       // by output; null: sampled in its row's turn
  std::vector<std::optional<Result<TokenId>>> drawn_;  // by output
  std::vector<Sampler> samplers_ = std::vector<Sampler>(1);  // one for each thread that draws
};

}  // namespace troupe
