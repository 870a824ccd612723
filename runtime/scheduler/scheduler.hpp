#pragma once
// The Scheduler: decides how many tokens of which requests are computed in the next step, and
// processes the step's result. The algorithm is that of vLLM's v1 scheduler.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "messages/control.hpp"
#include "messages/engine_output.hpp"
#include "messages/model_runner_output.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/task.hpp"
#include "runtime/scheduler/draft_budget.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/scheduler/fair_share.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/scheduler/ports.hpp"
#include "runtime/scheduler/request_queue.hpp"
#include "runtime/scheduler/request_state.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/scheduler/suspects.hpp"

namespace troupe {

/// Whether new requests are admitted, and whether anything is scheduled.
enum class PauseState : std::uint8_t { kUnpaused = 0, kPausedNew = 1, kPausedAll = 2 };

/// Owns all request states, the running list, the two waiting queues (`holding_`: waiting with KV
/// blocks, drained first; `waiting_`: without) and the token budgets. Accesses the caches through
/// the ports only.
///
/// With a KV connector, finished requests stay known until it releases their blocks. It is notified
/// of them within the next schedule(), update_from_output(), reset_prefix_cache() or
/// release_ended().
///
/// The owner (the actor, the replayer) drives the loop: add_request at any time; while
/// has_requests(): schedule() -> workers -> update_from_output() -> update_draft_token_ids(). With
/// async scheduling the next schedule() precedes the previous step's update_from_output(); updates
/// are in the order of the steps.
///
/// While schedule(), update_from_output() or reset_prefix_cache() is suspended, no other function
/// may be called: the owner queues requests and passes them on afterwards. Destroying the suspended
/// Task leaves the Scheduler unusable; this is for shutdown of the owner.
class Scheduler {
 public:
  /// `encoder_cache` may be null for text-only models, `connector` if KV is not transferred,
  /// `ec_connector` if outputs of encoders are not. Pre:
  /// the limits of `config` are consistent (max_num_batched_tokens >= max_num_seqs; without chunked
  /// prefill >= max_model_len).
  Scheduler(SchedulerConfig config, KVCachePort& kv_cache, EncoderCachePort* encoder_cache,
            KVConnector* connector = nullptr, ECConnector* ec_connector = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Adds a request, or the next chunk of the session with this id (not resumable: the session's
  /// end). `request.output_token_ids` count as outputs that were emitted before. Error: the id is
  /// in use by a request that is not a session.
  Result<void> add_request(EngineCoreRequest request, double now);

  /// Finishes requests without output. Returns those that were alive, in the given order. `status`
  /// is a finished one.
  std::vector<RequestId> finish_requests(std::span<const RequestId> ids, RequestStatus status);
  /// As finish_requests for every request, in the order of adding.
  std::vector<RequestId> finish_all_requests(RequestStatus status);
  /// Finishes every request with its output so far, in the order of adding (FinishReason::kAbort).
  EngineCoreOutputs abort_all_requests(double now);

  /// Sets the grammar that a structured request waits for, or the error.
  void set_grammar(RequestId id, Result<std::unique_ptr<Grammar>> grammar);

  /// Finishes requests whose time limits (RequestLimits) have passed: with FinishReason::kTimeout
  /// and an error that names the limit, to be used if nothing was generated yet.
  EngineCoreOutputs expire_requests(double now);
  /// When expire_requests() is due next; kNever if no request has a limit.
  [[nodiscard]] double next_deadline() const noexcept;

  /// Plans the next step. `defer_prefills`: while requests decode, no prefill runs and none is
  /// admitted (unless capacity alone had kept requests waiting).
  Task<SchedulerOutput> schedule(double now, bool defer_prefills = false);

  /// Processes the result of a step.
  Task<EngineCoreOutputs> update_from_output(SchedulerOutput step, ModelRunnerOutput result,
                                             double now);

  /// One of the open steps failed, so none of them counts (`steps`: all whose results were not
  /// processed), and what their workers had computed is lost: every running request goes back to
  /// the waiting queue with its tokens, which are recomputed. Finished requests are reported to the
  /// workers again. Returns false if sessions between two chunks still hold blocks, whose content
  /// is then invalid. `steps` is not used after the task's first suspension.
  Task<bool> recover_from_failed_steps(std::span<const SchedulerOutput> steps, double now);
  /// The step failed; call this before recover_from_failed_steps(). Finishes the request that
  /// caused the failure, with this error, if it is known. While it is not, schedule() plans the
  /// suspects one at a time.
  [[nodiscard]] EngineCoreOutputs blame_failed_step(const SchedulerOutput& step, const Error& error,
                                                    double now);
  /// Pre: the last plan scheduled nothing, and no step is open. True: the reason was a suspect that
  /// cannot be computed now (others hold the blocks, or its client has more to send); the next plan
  /// includes the others.
  bool skip_suspect() { return suspects_.skip(); }
  /// Pre: as above. True: the reason were failed loads (KV connector), which no longer hold blocks;
  /// the next plan can use them.
  bool release_failed_loads();
  [[nodiscard]] const Suspects& suspects() const noexcept { return suspects_; }

  /// What the masks of this step are made of; nullopt if it has no structured request past its
  /// prefill. If step.pending_structured_output_tokens, call it only after the update of the
  /// previous step. At most once for a step, in the order of the steps.
  [[nodiscard]] std::optional<GrammarStep> grammar_step(const SchedulerOutput& step) const;
  /// Finishes requests after whose tokens nothing can follow: FinishReason::kStop, or the error.
  /// Results of their open steps do not count. Those that end with drafts of the step do so in its
  /// update, if the drafts are accepted. Rows that allow nothing then allow everything: the workers
  /// need something to sample.
  EngineCoreOutputs end_structured(GrammarMasks& masks, double now);

  /// Likely tokens of structured requests, which are drafts of their next steps as far as they
  /// follow from the tokens that are known by then.
  void set_proposals(std::vector<GrammarProposal> proposals);

  /// The drafts of a step that was planned with placeholders (async scheduling), as far as the
  /// grammars accept them.
  void update_draft_token_ids_in_output(
      SchedulerOutput& step,
      std::span<const std::pair<RequestId, std::vector<TokenId>>> draft_token_ids) const;

  /// Drafts for the next step; for a structured request those that its grammar accepts. Not used
  /// with async scheduling: that step has placeholders, which the workers replace by their own
  /// drafts.
  void update_draft_token_ids(
      std::span<const std::pair<RequestId, std::vector<TokenId>>> draft_token_ids);

  /// Clears the prefix cache; false if blocks are in use. `preempt_running`: preempts all running
  /// requests first and drops their results in flight; then only a KV connector's transfers can
  /// make it fail. `reset_connector`: also clears the connector's external store.
  Task<bool> reset_prefix_cache(bool preempt_running, double now, bool reset_connector = false);
  void reset_encoder_cache();

  /// Copies what the KV connector has stored, or takes such copies in; done when is_moving_cache()
  /// is false. Errors: kUnsupported, there is no connector that could; kUnavailable.
  Result<void> start_cache_move(const MoveCache& what);
  [[nodiscard]] bool is_moving_cache() const {
    return connector_ != nullptr && connector_->is_moving();
  }
  /// The result. Pre: a move was started, and is done.
  [[nodiscard]] CacheMoved take_cache_moved() { return connector_->take_moved(); }

  void set_pause_state(PauseState state) noexcept { pause_state_ = state; }
  [[nodiscard]] PauseState pause_state() const noexcept { return pause_state_; }

  /// Notifies the KV connector of finished requests. Needed as flush() is.
  Task<bool> release_ended(std::span<EngineCoreOutput> outputs = {});

  /// Sends pending updates to the caches. Only needed to inspect them between steps, and when no
  /// step follows.
  void flush();

  /// Whether the step loop must continue: requests are unfinished, or finished ones are not
  /// reported yet.
  [[nodiscard]] bool has_requests() const;
  /// Pre: the last plan neither scheduled nor preempted a request, and no step is open. True: the
  /// next one will not either, until something arrives: a request, an abort, a grammar, news of the
  /// KV connector.
  [[nodiscard]] bool is_blocked() const;
  /// A connector may have news that only another step brings here.
  [[nodiscard]] bool awaits_connector() const noexcept {
    return connector_ != nullptr || encoder_lookups_pending_ || !delayed_releases_.empty();
  }
  [[nodiscard]] std::int32_t num_unfinished_requests() const;
  [[nodiscard]] std::int32_t num_waiting_requests() const noexcept {
    return static_cast<std::int32_t>(waiting_.size() + holding_.size());
  }
  [[nodiscard]] const std::vector<RequestState*>& running() const noexcept { return running_; }
  [[nodiscard]] const RequestQueue& waiting() const noexcept { return waiting_; }
  [[nodiscard]] const RequestQueue& holding() const noexcept { return holding_; }
  /// Steps whose results must arrive before blocks are freed, oldest first (KV connector).
  [[nodiscard]] const std::deque<std::uint64_t>& deferred_fences() const noexcept {
    return deferred_fences_;
  }
  /// Null if the request is unknown.
  [[nodiscard]] const RequestState* request(RequestId id) const;
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] const SchedulerConfig& config() const noexcept { return config_; }
  /// As of the last reply of the KVCacheManager.
  [[nodiscard]] std::int32_t num_free_blocks() const noexcept { return num_free_blocks_; }

 private:
  struct Budget;
  struct ScheduledRequest;
  struct SizedRequest;
  struct StepPlan;

  // scheduler_running.cpp
  Task<bool> schedule_running(StepPlan& plan);
  Task<std::size_t> size_batch(StepPlan& plan, std::size_t index);
  [[nodiscard]] bool skip_running(const RequestState& request, const StepPlan& plan) const;
  [[nodiscard]] std::int32_t size_running(const RequestState& request, const StepPlan& plan,
                                          const Budget& budget) const;
  Reply<SlotsAllocated> ask_slots(std::span<const SizedRequest> batch);
  Reply<SlotsAllocated> ask_num_cached(const RequestState& request);
  Task<bool> preempt_until_it_fits(StepPlan& plan, const SizedRequest& sized);
  void commit_running(StepPlan& plan, const SizedRequest& sized, const SlotsAllocated& answer,
                      std::size_t index);

  // scheduler_preemption.cpp
  [[nodiscard]] RequestState* choose_victim() const;
  void preempt_running(StepPlan& plan, RequestState* victim);
  bool preempt_for(StepPlan& plan, const RequestState& urgent);
  void undo_scheduled(StepPlan& plan, RequestState* victim);

  // scheduler_turns.cpp
  void enter_turns(RequestState& request);
  void leave_turns(RequestState& request);
  void charge(RequestState& request, std::int32_t num_computed_tokens);
  [[nodiscard]] bool may_be_passed(const RequestState& request, const StepPlan& plan) const;
  bool count_bypass(StepPlan& plan, const RequestState& admitted) const;
  [[nodiscard]] bool waits_for_adapter_slot(RequestState& request, StepPlan& plan) const;

  // scheduler_waiting.cpp
  enum class Admission : std::uint8_t { kAdmitted, kSkip, kDoesNotFit, kStop };
  struct SizedAdmission;
  struct PrefixLookup;
  Task<bool> look_up(RequestState& request, PrefixLookup& lookup);
  Task<bool> look_up_prompts();
  Task<bool> schedule_waiting(StepPlan& plan);
  [[nodiscard]] bool must_keep_waiting(RequestState& request, StepPlan& plan);
  Task<Admission> admit(StepPlan& plan, RequestState& request);
  void record_lookup(const RequestState& request, const PrefixLookup& lookup);
  [[nodiscard]] std::optional<SizedAdmission> size_admission(const RequestState& request,
                                                             std::int32_t num_computed,
                                                             const StepPlan& plan) const;
  void commit_admission(StepPlan& plan, RequestState& request, const SizedAdmission& sized,
                        std::int32_t num_computed, const RequestAdmitted& answer);

  // scheduler_connector.cpp
  bool waits_for_remote_kvs(RequestState& request);
  void start_load(RequestState& request, std::int32_t num_computed);
  void reserve_for_prefills(AdmitRequest& question) const;
  Task<std::vector<RequestId>> take_failed_loads(const SchedulerOutput& step,
                                                 const KVConnectorOutput& report);
  void take_transfer_results(const KVConnectorOutput& report);
  void add_early_params(EngineCoreOutputs& outputs);
  [[nodiscard]] bool must_defer_free(const RequestState& request) const;
  void free_blocks(RequestState& request);
  void pass_fence();
  void count_kv_loads(SchedulerStats& stats) const;

  // scheduler_sessions.cpp
  void keep_blocks(const RequestState& request);
  void keep_pins(const RequestState& request, std::span<const PrefixPin> pins);
  bool drop_kept(bool pins_too);
  void drop_pin();
  void drop_expired();

  // scheduler_structured.cpp
  bool waits_for_grammar(RequestState& request);
  void draft_proposal(RequestState& request) const;
  void advance_grammar(RequestState& request, std::span<const TokenId> kept);

  // state_chunks.cpp
  [[nodiscard]] std::int32_t cut_at_state(const RequestState& request, std::int32_t num_computed,
                                          std::int32_t num_new) const;

  // scheduler_encoder.cpp
  [[nodiscard]] bool encoder_window_has_items(const RequestState& request,
                                              std::int32_t num_computed,
                                              std::int32_t num_new) const;
  Task<EncoderInputsPlanned> plan_encoder_inputs(const RequestState& request, std::int32_t num_new,
                                                 std::int32_t num_computed, const Budget& budget);
  void commit_encoder_inputs(StepPlan& plan, ScheduledRequest& entry,
                             const EncoderInputsPlanned& inputs);

  void find_external_items(const RequestState& request, PlanEncoderInputs& question);
  void find_items_ahead(const RequestState& request, PlanEncoderInputs& question);
  void plan_encode_ahead(const StepPlan& plan, SchedulerOutput& output);
  void add_item_users(std::span<const MultiModalFeature> items);
  void release_items(const RequestState& request);
  void release_items(RequestId id, std::span<const std::string> identifiers);
  void start_encoder_loads(const StepPlan& plan);
  void take_encoder_report(const ECConnectorOutput& report);

  // scheduler.cpp
  [[nodiscard]] bool must_stand_back(const RequestState& request) const;
  /// That a single request may have.
  [[nodiscard]] std::int32_t most_tokens(const Budget& budget) const;
  [[nodiscard]] bool has_budget(const Budget& budget) const;
  void start_plan(StepPlan& plan, bool defer_prefills);
  void preempt(RequestState& request, bool drop_output);
  [[nodiscard]] std::int32_t keep_prefill_lookahead(const RequestState& request,
                                                    std::int32_t num_computed,
                                                    std::int32_t num_new) const;
  [[nodiscard]] SchedulerOutput build_output(const StepPlan& plan);
  /// How many drafts are made after the step; its requests are known.
  void plan_drafts(const StepPlan& step, SchedulerOutput& output);
  void advance_scheduled(const StepPlan& plan, SchedulerOutput& output);
  [[nodiscard]] std::vector<RequestState*> unfinished_in_order() const;
  void enqueue_waiting(RequestState* request);
  void defer(RequestState& request);
  void remove_from_queues(RequestState* request);
  void finish(RequestState& request, RequestStatus status);
  void free_request(RequestState& request);
  void forget(RequestState& request);
  void tell_kv(KVCacheCommandKind kind, RequestId id, std::int32_t count = 0);
  void tell_encoder(EncoderCacheCommandKind kind, const RequestState& request,
                    std::int32_t value = 0);
  [[nodiscard]] KVCacheUpdates take_kv_updates();
  [[nodiscard]] EncoderCacheUpdates take_encoder_updates();

  // scheduler_deadlines.cpp
  void start_clock(RequestState& request, const RequestLimits& limits, double age_s);
  void stop_clock(RequestState& request);
  void stop_queue_clock(RequestState& request);

  // scheduler_update.cpp
  struct StepResult;
  void count_drafts(std::int32_t num_drafts, std::int32_t num_accepted);
  bool process_result(RequestState& request, const StepResult& result, EngineCoreOutputs& outputs);
  static const GrammarEnd* end_in(const RequestState& request, const StepResult& result);
  std::int32_t keep_tokens(RequestState& request, const StepResult& result, bool stale,
                           const GrammarEnd* end);
  void end_turn(RequestState& request);
  void end_without_tokens(const ModelRunnerOutput& result, EngineCoreOutputs& outputs);
  void apply_chunk(RequestState& request, EngineCoreRequest chunk);
  void record_evicted(std::span<const BlockResidency> evicted);
  [[nodiscard]] SchedulerStats take_stats(std::int32_t num_scheduled_tokens);

  SchedulerConfig config_;
  KVCachePort& kv_cache_;
  EncoderCachePort* encoder_cache_;
  KVConnector* connector_;
  ECConnector* ec_connector_;

  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<RequestState*> running_;  ///< in the order of admission
  FairShare fair_share_;                ///< kFair
  RequestQueue waiting_;
  RequestQueue holding_;
  std::set<std::pair<double, RequestId>> deadlines_;      ///< of the requests that have one
  using Session = std::pair<std::uint32_t, std::string>;  ///< tenant, name
  /// Requests that have ended and whose blocks stay, by the time when they do no longer.
  std::map<std::pair<double, RequestId>, Session> kept_;
  std::map<Session, std::pair<double, RequestId>> kept_sessions_;
  /// Prefixes that requests pin, with their tokens, by the time when they do no longer.
  std::set<std::pair<double, std::pair<RequestId, std::int32_t>>> pins_;
  std::int32_t num_deferred_ = 0;
  std::int32_t num_waiting_for_chunk_ = 0;  ///< sessions between two chunks
  PauseState pause_state_ = PauseState::kUnpaused;
  Suspects suspects_;
  bool prefill_capacity_bound_ = false;
  std::uint64_t step_ = 0;
  std::uint64_t next_sequence_ = 0;
  double now_ = 0;

  KVCacheUpdates kv_updates_;
  EncoderCacheUpdates encoder_updates_;
  bool encoder_cache_touched_ = false;  ///< an output may have been evicted in this step
  bool encoder_cache_reset_ = false;    ///< the workers have not been told
  std::int32_t num_free_blocks_ = 0;
  std::int32_t num_pinned_blocks_ = 0;

  std::vector<RequestId> finished_ids_;                                  ///< since the last step
  std::vector<RequestId> preempted_ids_;                                 ///< since the last step
  std::vector<std::pair<std::uint32_t, RequestId>> finished_by_client_;  ///< since the last update
  std::vector<std::pair<RequestId, Error>> failures_;  ///< requests that the next update finishes
  std::vector<RequestId> lookups_;                     ///< that wait, see kLookupParams
  std::vector<std::pair<RequestId, std::string>>
      lookup_answers_;  ///< for the next update, which finishes them
  PrefixCacheStats prefix_stats_;
  PrefixCacheStats connector_stats_;
  EncoderCacheStats encoder_stats_;
  EncoderTransferStats encoder_transfer_stats_;
  SpecDecodingStats spec_stats_;
  DraftBudget draft_budget_;  ///< with speculative.adaptive
  std::vector<BlockResidency> evicted_blocks_;
  std::unique_ptr<StepPlan> plan_;  ///< reused to avoid allocations

  // Only with encode_ahead.
  /// The item that the workers encode, or have encoded.
  struct ItemAhead {
    RequestId request{};
    std::string identifier;
    bool is_encoded = false;
  };
  std::optional<ItemAhead> ahead_;
  struct WantedItem {
    RequestId request{};
    std::int32_t item = 0;
    bool is_running = false;
  };
  std::optional<WantedItem> wanted_ahead_;  ///< the first one that the plan waits for
  bool ahead_is_reached_ = false;           ///< the plan has come to where ahead_ is needed

  // Only with an EC connector.
  std::unordered_map<std::string, std::int32_t> item_users_;  ///< by identifier
  /// Finished requests that keep their references in the encoder cache, with their identifiers.
  std::unordered_map<RequestId, std::vector<std::string>> delayed_releases_;
  bool encoder_lookups_pending_ = false;  ///< the last plan waits for the connector's answer

  // Only with a KV connector.
  std::vector<RequestState*> ended_;  ///< the connector is not yet notified of them
  std::int32_t num_holding_after_end_ = 0;
  /// In the middle of prefills or loads: certain to need more blocks.
  std::unordered_set<RequestState*> unfinished_prefills_;
  bool defer_frees_ = false;
  std::uint64_t fence_ = 0;            ///< steps with tokens so far
  std::uint64_t processed_fence_ = 0;  ///< of those, the ones whose results were processed
  std::deque<std::uint64_t> deferred_fences_;
};

}  // namespace troupe
