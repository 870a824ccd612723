// The Scheduler: drives schedule -> execute -> update, and carries the core's questions to the
// cache managers.
#include "runtime/scheduler/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <variant>

#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/multimodal/picture_cache.hpp"

namespace troupe {
namespace {

/// While nothing can be computed, the workers' side of the KV connector is asked for news this
/// often.
constexpr double kConnectorPollSeconds = 0.001;

/// Sends a question to an actor; the reply is set when the answer arrives. If it cannot, the
/// Scheduler cannot go on: it ends with the error, and the Supervisor, who watches it, decides.
template <class Answer, class Self, class Handle, class Question>
Reply<Answer> ask_for(Self* self, const Handle& to, Question question) {
  auto [reply, setter] = Reply<Answer>::pending();
  ask(self, to, std::move(question))
      .then([setter = setter](Answer& answer) { setter.set(std::move(answer)); },
            [self](const caf::error& error) {
              log_error("a cache manager gave no answer",
                        kv("error", to_text(error, self->system())));
              self->quit(error);
            });
  return std::move(reply);
}

using Self = SchedulerActor::pointer;

class KVCacheActorPort final : public KVCachePort {
 public:
  KVCacheActorPort(Self self, KVCacheManagerActor to) : self_(self), to_(std::move(to)) {}
  void send(KVCacheUpdates updates) override { troupe::send(self_, to_, std::move(updates)); }
  Reply<SlotsAllocated> allocate(AllocateSlots question) override {
    return ask_for<SlotsAllocated>(self_, to_, std::move(question));
  }
  Reply<PrefixHit> lookup(LookupPrefix question) override {
    return ask_for<PrefixHit>(self_, to_, std::move(question));
  }
  Reply<RequestAdmitted> admit(AdmitRequest question) override {
    return ask_for<RequestAdmitted>(self_, to_, std::move(question));
  }
  Reply<BlockOps> get_block_ops(GetBlockOps question) override {
    return ask_for<BlockOps>(self_, to_, std::move(question));
  }
  Reply<BlockTableRead> read_block_table(ReadBlockTable question) override {
    return ask_for<BlockTableRead>(self_, to_, std::move(question));
  }
  Reply<InvalidBlocksFound> find_invalid_blocks(FindInvalidBlocks question) override {
    return ask_for<InvalidBlocksFound>(self_, to_, std::move(question));
  }
  Reply<PrefixCacheReset> reset(ResetPrefixCache question) override {
    return ask_for<PrefixCacheReset>(self_, to_, std::move(question));
  }

 private:
  Self self_;
  KVCacheManagerActor to_;
};

class EncoderCacheActorPort final : public EncoderCachePort {
 public:
  EncoderCacheActorPort(Self self, EncoderCacheManagerActor to) : self_(self), to_(std::move(to)) {}
  void send(EncoderCacheUpdates updates) override { troupe::send(self_, to_, std::move(updates)); }
  Reply<EncoderInputsPlanned> plan(PlanEncoderInputs question) override {
    return ask_for<EncoderInputsPlanned>(self_, to_, std::move(question));
  }
  Reply<FreedEncoderOutputs> take_freed(TakeFreedEncoderOutputs question) override {
    return ask_for<FreedEncoderOutputs>(self_, to_, std::move(question));
  }

 private:
  Self self_;
  EncoderCacheManagerActor to_;
};

/// A grammar that is being made. `grammar` is the compiler's to fill until GrammarCompiled has
/// come.
struct PendingGrammar {
  std::uint64_t sequence = 0;  ///< of its request
  std::shared_ptr<std::optional<Result<std::unique_ptr<Grammar>>>> grammar;
};

/// The masks of an open step that are being filled. `masks` are the compiler's to fill until
/// GrammarFilled has come.
using PendingMasks = std::shared_ptr<std::optional<GrammarMasks>>;

/// What the grammars of a step's requests propose.
struct PendingProposals {
  std::vector<GrammarProposal> proposals;
};

struct PendingReset {
  ResetCaches what;
  caf::typed_response_promise<CachesReset> promise;
};

struct PendingMove {
  MoveCache what;
  caf::typed_response_promise<CacheMoved> promise;
};

struct PendingPause {
  PauseScheduler what;
  caf::typed_response_promise<PauseStatus> promise;
};

struct PendingResume {
  caf::typed_response_promise<PauseStatus> promise;
};

/// Steps overlap: up to `max_open_steps` are open, so that the workers have the next one at hand
/// when they end one. While the core asks the caches nothing may touch it. Whatever arrives passes
/// through `inbox`, in the order of arrival.
struct SchedulerState {
  SchedulerState() = default;
  static inline const char* name = "scheduler";

  SchedulerPeers peers;
  std::unique_ptr<KVCacheActorPort> kv_cache;
  std::unique_ptr<EncoderCacheActorPort> encoder_cache;
  std::unique_ptr<Scheduler> core;
  Task<SchedulerOutput> planning;
  Task<EngineCoreOutputs> updating;        ///< from a step's result
  Task<bool> recovering;                   ///< from a failed step, or a reset of the caches
  std::deque<SchedulerOutput> open_steps;  ///< with the workers, no result yet; oldest first
  std::size_t max_open_steps = 1;
  /// The youngest open step waits for its GrammarOutput, which needs the results of all others.
  bool owes_grammar = false;
  std::uint32_t incarnation = 0;  ///< of the engine
  std::unordered_map<RequestId, PendingGrammar> grammars;
  std::map<std::uint64_t, PendingMasks> masks;  ///< by step
  /// What the last plan did not look at may make another one worth while: the loop sleeps only
  /// without. Cleared when a plan begins, never by the result of a step: what arrived while that
  /// step was open has not been looked at by any plan.
  bool has_news = false;
  /// Blocks of requests that have ended before are free: one more step reports it, also if there
  /// are no requests.
  bool reports_free_blocks = false;
  std::deque<std::variant<EngineCoreRequest, AbortRequests, ModelRunnerOutput, StepFailed,
                          GrammarCompiled, GrammarFilled, PendingProposals, WakeUp, PendingReset,
                          PendingMove, PendingPause, PendingResume>>
      inbox;
  std::optional<PendingMove> moving;  ///< answered when it is done
  std::vector<PendingPause> pausing;  ///< answered when nothing runs any more
  double poll_at = kNever;            ///< when the KV connector is to be asked for news
  double wake_at = kNever;            ///< when WakeUp arrives, if it is under way

  [[nodiscard]] bool asking() const {
    return planning.valid() || updating.valid() || recovering.valid();
  }
};

using StatefulSelf = SchedulerActor::stateful_pointer<SchedulerState>;

void advance(StatefulSelf self);
template <class Message>
void receive(StatefulSelf self, Message&& message);

void report_error(StatefulSelf self, RequestId id, Error error) {
  EngineCoreOutputs outputs;
  outputs.time = now_seconds();
  outputs.outputs.push_back(
      {.id = id, .finish_reason = FinishReason::kError, .error = std::move(error)});
  send(self, state(self).peers.output_processor, std::move(outputs));
}

/// Of a request that waits for one; other requests run meanwhile.
void compile_grammar(StatefulSelf self, const RequestState& request) {
  SchedulerState& scheduler = state(self);
  if (scheduler.peers.grammar_compiler == nullptr) {
    const Error error{ErrorCode::kUnsupported, "structured output is not offered",
                      "structured_outputs"};
    return scheduler.core->set_grammar(request.id, error);
  }
  PendingGrammar& pending = scheduler.grammars[request.id];
  if (pending.grammar && pending.sequence == request.sequence) return;  // its session's next chunk
  pending = {request.sequence, std::make_shared<std::optional<Result<std::unique_ptr<Grammar>>>>()};
  scheduler.peers.grammar_compiler->compile(
      request.params,
      [me = SchedulerActor(self), compiled = GrammarCompiled{request.id, request.sequence},
       place = pending.grammar](Result<std::unique_ptr<Grammar>> grammar) {
        *place = std::move(grammar);
        post(me, compiled);
      });
}

void take(StatefulSelf self, EngineCoreRequest& request) {
  const RequestId id = request.id;
  Scheduler& core = *state(self).core;
  auto added = core.add_request(std::move(request), now_seconds());
  if (!added.ok()) return report_error(self, id, added.error());
  const RequestState* const known = core.request(id);
  if (known != nullptr && known->status == RequestStatus::kWaitingForGrammar)
    compile_grammar(self, *known);
}

/// The request may have ended, and another one may have its id.
void take(StatefulSelf self, GrammarCompiled& compiled) {
  SchedulerState& scheduler = state(self);
  const auto pending = scheduler.grammars.find(compiled.id);
  if (pending == scheduler.grammars.end() || pending->second.sequence != compiled.sequence) return;
  const auto grammar = std::move(pending->second.grammar);
  scheduler.grammars.erase(pending);
  const RequestState* const request = scheduler.core->request(compiled.id);
  if (request != nullptr && request->sequence == compiled.sequence)
    scheduler.core->set_grammar(compiled.id, std::move(grammar->value()));
}

void take(StatefulSelf self, AbortRequests& abort) {
  static_cast<void>(state(self).core->finish_requests(abort.ids, RequestStatus::kFinishedAborted));
}

void send_masks(StatefulSelf self, GrammarOutput masks) {
  masks.incarnation = state(self).incarnation;
  send(self, state(self).peers.executor, std::move(masks));
}

/// What the grammars allow in an open step is found out while the workers compute it. They wait for
/// it, also if its structured requests have ended and it says nothing.
void fill_masks_of(StatefulSelf self, const SchedulerOutput& step) {
  SchedulerState& scheduler = state(self);
  std::optional<GrammarStep> structured = scheduler.core->grammar_step(step);
  if (!structured) return send_masks(self, GrammarOutput{.step = step.step});
  const auto place = std::make_shared<std::optional<GrammarMasks>>();
  scheduler.masks.emplace(step.step, place);
  scheduler.peers.grammar_compiler->fill(
      *std::move(structured),
      [me = SchedulerActor(self), filled = GrammarFilled{step.step}, place](GrammarMasks masks) {
        *place = std::move(masks);
        post(me, filled);
      });
}

/// Requests end before the result of a step in which there is nothing for them to sample.
void take(StatefulSelf self, GrammarFilled& filled) {
  SchedulerState& scheduler = state(self);
  auto pending = scheduler.masks.extract(filled.step);
  if (pending.empty()) return;  // the step has failed
  GrammarMasks masks = *std::move(*pending.mapped());
  send(self, scheduler.peers.output_processor,
       scheduler.core->end_structured(masks, now_seconds()));
  scheduler.core->set_proposals(std::move(masks.proposals));
  send_masks(self, std::move(masks.output));
}

void take(StatefulSelf self, PendingProposals& pending) {
  state(self).core->set_proposals(std::move(pending.proposals));
}

/// The usual masks end no request: nothing has to wait for them.
void receive_masks(StatefulSelf self, const GrammarFilled& filled) {
  SchedulerState& scheduler = state(self);
  const auto pending = scheduler.masks.find(filled.step);
  if (pending == scheduler.masks.end()) return;
  std::optional<GrammarMasks>& masks = *pending->second;
  if (!masks->ended.empty()) return receive(self, filled);
  send_masks(self, std::move(masks->output));
  if (!masks->proposals.empty())
    scheduler.inbox.emplace_back(PendingProposals{std::move(masks->proposals)});
  scheduler.masks.erase(pending);
  advance(self);
}

/// What the KV connector has stored and dropped; the KVCacheManager knows who follows it.
void publish_connector_events(StatefulSelf self) {
  const SchedulerPeers& peers = state(self).peers;
  if (peers.kv_connector == nullptr) return;
  std::vector<KVCacheEvent> events = peers.kv_connector->take_events();
  if (!events.empty())
    send(self, peers.kv_cache_manager, KVEventBatch{wall_seconds(), std::move(events)});
}

/// What has been exported or imported.
void answer_move(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  CacheMoved moved = scheduler.core->take_cache_moved();
  log_info("cache moved", kv("import", scheduler.moving->what.is_import),
           kv("folder", scheduler.moving->what.folder), kv("blocks", moved.num_blocks),
           kv("error", moved.error ? moved.error->message : ""));
  scheduler.moving->promise.deliver(std::move(moved));
  scheduler.moving.reset();
}

/// Results come in the order of the steps; those of steps that were given up are dropped.
void take(StatefulSelf self, ModelRunnerOutput& result) {
  SchedulerState& scheduler = state(self);
  if (scheduler.open_steps.empty() || scheduler.open_steps.front().step != result.step) return;
  SchedulerOutput step = std::move(scheduler.open_steps.front());
  scheduler.open_steps.pop_front();
  // Neither this step nor one after it changed anything that a plan depends on.
  const bool brings_nothing = step.scheduled_ids.empty() && step.preempted_ids.empty() &&
                              !step.encode_ahead && scheduler.open_steps.empty() &&
                              result.kv_connector.empty() && result.ec_connector.empty();
  const bool frees_blocks = !result.kv_connector.finished_sending.empty() ||
                            !result.kv_connector.finished_recving.empty();
  auto on_updated = [self, brings_nothing, frees_blocks,
                     drafts = std::move(result.draft_token_ids)] {
    SchedulerState& scheduler = state(self);
    if (scheduler.owes_grammar && scheduler.open_steps.size() == 1) {
      SchedulerOutput& next = scheduler.open_steps.front();
      scheduler.core->update_draft_token_ids_in_output(next, drafts);
      fill_masks_of(self, next);
      scheduler.owes_grammar = false;
    }
    send(self, scheduler.peers.output_processor, scheduler.updating.result());
    publish_connector_events(self);
    scheduler.reports_free_blocks |= frees_blocks;
    scheduler.core->update_draft_token_ids(drafts);
    scheduler.updating.reset();
    if (scheduler.moving && !scheduler.core->is_moving_cache()) answer_move(self);
    scheduler.has_news |= !brings_nothing || !scheduler.core->is_blocked();
    if (!scheduler.has_news && scheduler.core->awaits_connector() && scheduler.core->has_requests())
      scheduler.poll_at = now_seconds() + kConnectorPollSeconds;
    advance(self);
  };
  scheduler.updating =
      scheduler.core->update_from_output(std::move(step), std::move(result), now_seconds());
  scheduler.updating.start(std::move(on_updated));
}

/// The steps behind the failed one build on it: none of them counts. Their requests wait again, and
/// no block they were to fill stays in the prefix cache.
void take(StatefulSelf self, StepFailed& failure) {
  SchedulerState& scheduler = state(self);
  const auto failed =
      std::find_if(scheduler.open_steps.begin(), scheduler.open_steps.end(),
                   [&](const SchedulerOutput& step) { return step.step == failure.step; });
  if (failed == scheduler.open_steps.end()) return;
  EngineCoreOutputs blamed =
      scheduler.core->blame_failed_step(*failed, failure.error, now_seconds());
  if (!blamed.outputs.empty()) send(self, scheduler.peers.output_processor, std::move(blamed));
  const std::vector<SchedulerOutput> steps(std::move_iterator(scheduler.open_steps.begin()),
                                           std::move_iterator(scheduler.open_steps.end()));
  // The workers are not left with a step that is not sampled: the next one would fail by it.
  for (const auto& [number, masks] : std::exchange(scheduler.masks, {}))
    send_masks(self, GrammarOutput{.step = number});
  if (std::exchange(scheduler.owes_grammar, false))
    send_masks(self, GrammarOutput{.step = steps.back().step});
  scheduler.open_steps.clear();
  scheduler.recovering = scheduler.core->recover_from_failed_steps(steps, now_seconds());
  scheduler.recovering.start([self] {
    state(self).recovering.reset();
    advance(self);
  });
}

void take(StatefulSelf self, WakeUp&) { state(self).wake_at = state(self).poll_at = kNever; }

/// Ends the requests whose time is up. A timer runs only while some request has a limit, or the KV
/// connector is to be asked.
void watch_the_clock(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  if (scheduler.core->next_deadline() == kNever && scheduler.poll_at == kNever) return;
  const double now = now_seconds();
  if (scheduler.core->next_deadline() <= now) {
    send(self, scheduler.peers.output_processor, scheduler.core->expire_requests(now));
    scheduler.has_news = scheduler.reports_free_blocks = true;  // of what has ended
  }
  const double next = std::min(scheduler.core->next_deadline(), scheduler.poll_at);
  if (next >= scheduler.wake_at) return;
  scheduler.wake_at = next;
  const SchedulerActor me = self;
  send_after(self, from_seconds(std::max(next - now, 0.0)), me, WakeUp{});
}

/// Open steps go on; with preempt_running their results are dropped, and computed anew.
void take(StatefulSelf self, PendingReset& reset) {
  SchedulerState& scheduler = state(self);
  if (reset.what.mm_cache && scheduler.peers.item_cache != nullptr)
    scheduler.peers.item_cache->clear();
  if (reset.what.encoder_cache) scheduler.core->reset_encoder_cache();
  if (!reset.what.prefix_cache) {
    reset.promise.deliver(CachesReset{true});
    return;
  }
  scheduler.recovering = scheduler.core->reset_prefix_cache(reset.what.preempt_running,
                                                            now_seconds(), reset.what.connector);
  scheduler.recovering.start([self, promise = reset.promise]() mutable {
    const bool ok = state(self).recovering.result();
    state(self).recovering.reset();
    log_info("prefix cache reset", kv("done", ok));
    promise.deliver(CachesReset{ok});
    advance(self);
  });
}

void take(StatefulSelf self, PendingMove& move) {
  const auto started = state(self).core->start_cache_move(move.what);
  if (!started.ok()) {
    move.promise.deliver(CacheMoved{.error = started.error()});
    return;
  }
  state(self).moving = std::move(move);
}

void take(StatefulSelf self, PendingPause& pause) {
  SchedulerState& scheduler = state(self);
  if (pause.what.mode == PauseMode::kAbort) {
    send(self, scheduler.peers.output_processor, scheduler.core->abort_all_requests(now_seconds()));
  }
  scheduler.core->set_pause_state(pause.what.mode == PauseMode::kKeep ? PauseState::kPausedAll
                                                                      : PauseState::kPausedNew);
  scheduler.pausing.push_back(std::move(pause));
}

void answer_pauses(StatefulSelf self, bool paused) {
  for (PendingPause& pause : std::exchange(state(self).pausing, {}))
    pause.promise.deliver(PauseStatus{paused});
}

void take(StatefulSelf self, PendingResume& resume) {
  state(self).core->set_pause_state(PauseState::kUnpaused);
  answer_pauses(self, false);
  resume.promise.deliver(PauseStatus{false});
}

/// Nothing runs, and nothing is left to be told.
void complete_pause(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  const bool clears = std::any_of(
      scheduler.pausing.begin(), scheduler.pausing.end(), [](const PendingPause& pause) {
        return pause.what.clear_caches && pause.what.mode != PauseMode::kKeep;
      });
  if (!clears) return answer_pauses(self, true);
  scheduler.core->reset_encoder_cache();
  scheduler.recovering = scheduler.core->reset_prefix_cache(
      /*preempt_running=*/true, now_seconds(), /*reset_connector=*/true);
  scheduler.recovering.start([self] {
    log_info("caches cleared in a pause", kv("done", state(self).recovering.result()));
    state(self).recovering.reset();
    answer_pauses(self, true);
    advance(self);
  });
}

/// True if the workers need not hear of it.
bool is_empty(const SchedulerOutput& step) {
  return step.scheduled_ids.empty() && step.finished_ids.empty() && step.preempted_ids.empty() &&
         step.blocks_to_zero.empty() && step.block_copies.empty() &&
         step.free_encoder_identifiers.empty() && !step.reset_encoder_cache &&
         step.kv_connector_metadata.empty() && step.ec_connector_metadata.empty() &&
         !step.encode_ahead;
}

void on_planned(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  SchedulerOutput step = scheduler.planning.result();
  step.incarnation = scheduler.incarnation;
  scheduler.planning.reset();
  log_debug("step planned", kv("step", step.step), kv("requests", step.scheduled_ids.size()),
            kv("tokens", step.total_num_scheduled_tokens),
            kv("preempted", step.preempted_ids.size()),
            kv("open_steps", scheduler.open_steps.size()));
  scheduler.has_news |= !step.scheduled_ids.empty() || !step.preempted_ids.empty();
  if (step.scheduled_ids.empty() && scheduler.open_steps.empty() && !step.encode_ahead)
    scheduler.has_news |= scheduler.core->skip_suspect();
  // With no step open, the empty one's result is what makes the loop go on.
  if (!is_empty(step) || scheduler.open_steps.empty()) {
    send(self, scheduler.peers.executor, step);
    const SchedulerOutput& sent = scheduler.open_steps.emplace_back(std::move(step));
    if (sent.has_structured_output_requests) {
      scheduler.owes_grammar =
          sent.pending_structured_output_tokens && scheduler.open_steps.size() > 1;
      if (!scheduler.owes_grammar) fill_masks_of(self, sent);
    }
  }
  advance(self);
}

/// Takes in what has arrived, then plans steps while there is something to do, until the core asks
/// or as many steps are open as may be.
void advance(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  while (!scheduler.asking()) {
    if (!scheduler.inbox.empty()) {
      auto message = std::move(scheduler.inbox.front());
      scheduler.inbox.pop_front();
      // Whether a result is news, its update tells. Proposals are for plans that others bring
      // about.
      scheduler.has_news |= !std::holds_alternative<ModelRunnerOutput>(message) &&
                            !std::holds_alternative<PendingProposals>(message);
      std::visit([self](auto& arrived) { take(self, arrived); }, message);
      continue;
    }
    watch_the_clock(self);
    if (!scheduler.core->has_requests() && !scheduler.reports_free_blocks) {
      scheduler.core->flush();
      if (scheduler.pausing.empty() || !scheduler.open_steps.empty()) return;
      complete_pause(self);
      continue;
    }
    if (!scheduler.has_news || scheduler.open_steps.size() >= scheduler.max_open_steps) return;
    // The workers could not begin with another one before this one is sampled.
    if (scheduler.owes_grammar || !scheduler.masks.empty()) return;
    scheduler.has_news = false;
    scheduler.reports_free_blocks = false;
    scheduler.planning = scheduler.core->schedule(now_seconds());
    scheduler.planning.start([self] { on_planned(self); });
  }
}

/// Gives the items of a request, which all of its samples have, the data that was sent before.
ItemsMissing complete_items(StatefulSelf self, std::vector<EngineCoreRequest>& samples) {
  if (samples.empty() || samples.front().mm_features.empty()) return {};
  std::vector<MultiModalFeature>& items = samples.front().mm_features;
  ItemsMissing missing;
  if (ItemCache* const cache = state(self).peers.item_cache.get()) {
    missing.identifiers = cache->complete(items);
  } else {
    for (const MultiModalFeature& item : items)
      if (item.data == nullptr) missing.identifiers.push_back(item.identifier);
  }
  for (EngineCoreRequest& sample : samples)
    for (std::size_t i = 0; i < sample.mm_features.size(); ++i)
      sample.mm_features[i].data = items[i].data;
  return missing;
}

template <class Message>
void receive(StatefulSelf self, Message&& message) {
  state(self).inbox.emplace_back(std::forward<Message>(message));
  advance(self);
}

/// Loading reads files, perhaps from a network.
constexpr double kAdapterDeadlineS = 120;

/// The ranks have the same, or there is an error.
AdapterReply join_ranks(CollectiveRpcReply& reply) {
  if (reply.error) return {.adapters = {}, .error = std::move(reply.error)};
  AdapterReply joined;
  for (std::size_t rank = 0; rank < reply.results.size(); ++rank) {
    auto* const list = std::get_if<AdapterList>(&reply.results[rank]);
    if (list == nullptr) continue;
    if (rank == 0) {
      joined.adapters = std::move(list->adapters);
      continue;
    }
    const bool same =
        std::equal(joined.adapters.begin(), joined.adapters.end(), list->adapters.begin(),
                   list->adapters.end(), [](const LoraRequest& a, const LoraRequest& b) {
                     return a.name == b.name && a.int_id == b.int_id;
                   });
    if (!same)
      return {
          .adapters = {},
          .error = Error{ErrorCode::kUnavailable, "ranks 0 and " + std::to_string(rank) +
                                                      " have found different files of an adapter"}};
  }
  return joined;
}

/// Between two steps, on all workers.
caf::result<AdapterReply> call_adapters(StatefulSelf self, WorkerMethod method) {
  auto promise = self->make_response_promise<AdapterReply>();
  ask(self, state(self).peers.executor, from_seconds(kAdapterDeadlineS + 1),
      CollectiveRpc{std::move(method), kAdapterDeadlineS})
      .then([promise](CollectiveRpcReply& reply) mutable { promise.deliver(join_ranks(reply)); },
            [self, promise](const caf::error& error) mutable {
              promise.deliver(AdapterReply{
                  .adapters = {},
                  .error = Error{ErrorCode::kUnavailable,
                                 "no reply from the workers: " + to_text(error, self->system())}});
            });
  return promise;
}

SchedulerActor::behavior_type scheduler_behavior(StatefulSelf self, const SchedulerConfig& config,
                                                 const SchedulerPeers& peers) {
  SchedulerState& scheduler = state(self);
  scheduler.peers = peers;
  scheduler.incarnation = config.incarnation;
  scheduler.max_open_steps = static_cast<std::size_t>(config.max_concurrent_batches());
  scheduler.kv_cache = std::make_unique<KVCacheActorPort>(self, peers.kv_cache_manager);
  if (peers.encoder_cache_manager) {
    scheduler.encoder_cache =
        std::make_unique<EncoderCacheActorPort>(self, peers.encoder_cache_manager);
  }
  scheduler.core =
      std::make_unique<Scheduler>(config, *scheduler.kv_cache, scheduler.encoder_cache.get(),
                                  peers.kv_connector.get(), peers.ec_connector.get());
  return {
      [self](EngineCoreRequests& request) {
        static_cast<void>(complete_items(self, request.samples));
        for (EngineCoreRequest& sample : request.samples) receive(self, sample);
      },
      [self](CachedItemRequests& request) {
        ItemsMissing missing = complete_items(self, request.samples);
        if (missing.identifiers.empty())
          for (EngineCoreRequest& sample : request.samples) receive(self, sample);
        return missing;
      },
      [self](AbortRequests& abort) { receive(self, abort); },
      [self](ModelRunnerOutput& result) { receive(self, result); },
      [self](StepFailed& failure) { receive(self, failure); },
      [self](GrammarCompiled& compiled) { receive(self, compiled); },
      [self](const GrammarFilled& filled) { receive_masks(self, filled); },
      [self](WakeUp& wake_up) { receive(self, wake_up); },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        auto promise = self->make_response_promise<CachesReset>();
        receive(self, PendingReset{what, promise});
        return promise;
      },
      [self](MoveCache& what) -> caf::result<CacheMoved> {
        auto promise = self->make_response_promise<CacheMoved>();
        receive(self, PendingMove{std::move(what), promise});
        return promise;
      },
      [self](const PauseScheduler& what) -> caf::result<PauseStatus> {
        auto promise = self->make_response_promise<PauseStatus>();
        receive(self, PendingPause{what, promise});
        return promise;
      },
      [self](const ResumeScheduler&) -> caf::result<PauseStatus> {
        auto promise = self->make_response_promise<PauseStatus>();
        receive(self, PendingResume{promise});
        return promise;
      },
      [self](const AskPaused&) {
        return PauseStatus{state(self).core->pause_state() != PauseState::kUnpaused};
      },
      [self](const LoadAdapter& what) { return call_adapters(self, what); },
      [self](const UnloadAdapter& what) { return call_adapters(self, what); },
      [self](const ListAdapters& what) { return call_adapters(self, what); },
  };
}

}  // namespace

SchedulerActor spawn_scheduler(caf::actor_system& system, const SchedulerConfig& config,
                               const SchedulerPeers& peers) {
  return system.spawn(scheduler_behavior, config, peers);
}

}  // namespace troupe
