// The loop of the Scheduler's steps. While the core waits for the caches, messages pass through the
// inbox.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "actors/scheduler_state.hpp"
#include "runtime/base/log.hpp"
#include "runtime/multimodal/processor_cache.hpp"
#include "runtime/scheduler/decision_log.hpp"

namespace troupe {
namespace {

/// While nothing can be computed, the workers' side of the KV connector is polled at this
/// interval.
constexpr double kConnectorPollSeconds = 0.001;

void advance(SchedulerSelf self);

void report_error(SchedulerSelf self, RequestId id, Error error) {
  EngineCoreOutputs outputs;
  outputs.time = now_seconds();
  outputs.outputs.push_back(
      {.id = id, .finish_reason = FinishReason::kError, .error = std::move(error)});
  send(self, state(self).peers.output_processor, std::move(outputs));
}

void take(SchedulerSelf self, EngineCoreRequest& request) {
  const RequestId id = request.id;
  Scheduler& core = *state(self).core;
  if (state(self).peers.log != nullptr) state(self).peers.log->on_added(request);
  auto added = core.add_request(std::move(request), now_seconds());
  if (!added.ok()) return report_error(self, id, added.error());
  const RequestState* const known = core.request(id);
  if (known != nullptr && known->status == RequestStatus::kWaitingForGrammar)
    compile_grammar(self, *known);
}

void take(SchedulerSelf self, AbortRequests& abort) {
  SchedulerState& scheduler = state(self);
  const auto done = scheduler.core->finish_requests(abort.ids, RequestStatus::kFinishedAborted);
  if (scheduler.peers.log != nullptr) scheduler.peers.log->on_aborted(abort.ids, done);
}

/// What the KV connector has stored and evicted; the KVCacheManager has the publisher.
void publish_connector_events(SchedulerSelf self) {
  const SchedulerPeers& peers = state(self).peers;
  if (peers.kv_connector == nullptr) return;
  std::vector<KVCacheEvent> events = peers.kv_connector->take_events();
  if (!events.empty())
    send(self, peers.kv_cache_manager, KVEventBatch{wall_seconds(), std::move(events)});
}

/// Reports how much was exported or imported.
void answer_move(SchedulerSelf self) {
  SchedulerState& scheduler = state(self);
  CacheMoved moved = scheduler.core->take_cache_moved();
  log_info("cache moved", kv("import", scheduler.moving->what.is_import),
           kv("folder", scheduler.moving->what.folder), kv("blocks", moved.num_blocks),
           kv("error", moved.error ? moved.error->message : ""));
  scheduler.moving->promise.deliver(std::move(moved));
  scheduler.moving.reset();
}

/// Results arrive in the order of the steps; those of abandoned steps are dropped.
void take(SchedulerSelf self, ModelRunnerOutput& result) {
  SchedulerState& scheduler = state(self);
  if (scheduler.open_steps.empty() || scheduler.open_steps.front().step != result.step) return;
  SchedulerOutput step = std::move(scheduler.open_steps.front());
  scheduler.open_steps.pop_front();
  // Neither this step nor a later one changed anything that a plan depends on.
  const bool brings_nothing = step.scheduled_ids.empty() && step.preempted_ids.empty() &&
                              !step.encode_ahead && scheduler.open_steps.empty() &&
                              result.kv_connector.empty() && result.ec_connector.empty();
  const bool frees_blocks = !result.kv_connector.finished_sending.empty() ||
                            !result.kv_connector.finished_recving.empty();
  std::optional<ModelRunnerOutput> logged;
  if (scheduler.peers.log != nullptr) logged = result;
  auto on_updated = [self, brings_nothing, frees_blocks, logged = std::move(logged),
                     drafts = std::move(result.draft_token_ids)] {
    SchedulerState& scheduler = state(self);
    EngineCoreOutputs outputs = scheduler.updating.result();
    if (logged) {
      scheduler.peers.log->on_result(*logged, outputs);
      scheduler.peers.log->on_drafts(drafts);
    }
    if (scheduler.owes_grammar && scheduler.open_steps.size() == 1) {
      SchedulerOutput& next = scheduler.open_steps.front();
      scheduler.core->update_draft_token_ids_in_output(next, drafts);
      fill_masks_of(self, next);
      scheduler.owes_grammar = false;
    }
    send(self, scheduler.peers.output_processor, std::move(outputs));
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

/// The steps after the failed one build on it, so none of them counts. Their requests return to the
/// waiting queue, and blocks that they would have filled leave the prefix cache.
void take(SchedulerSelf self, StepFailed& failure) {
  SchedulerState& scheduler = state(self);
  const auto failed =
      std::find_if(scheduler.open_steps.begin(), scheduler.open_steps.end(),
                   [&](const SchedulerOutput& step) { return step.step == failure.step; });
  if (failed == scheduler.open_steps.end()) return;
  log_other(self, "failed step");
  EngineCoreOutputs blamed =
      scheduler.core->blame_failed_step(*failed, failure.error, now_seconds());
  if (!blamed.outputs.empty()) send(self, scheduler.peers.output_processor, std::move(blamed));
  const std::vector<SchedulerOutput> steps(std::move_iterator(scheduler.open_steps.begin()),
                                           std::move_iterator(scheduler.open_steps.end()));
  // The workers must not keep a step that is not sampled: the next one would fail.
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

void take(SchedulerSelf self, WakeUp&) { state(self).wake_at = state(self).poll_at = kNever; }

/// Ends requests whose deadline has passed. A timer runs only while a request has a deadline, or
/// the KV connector is to be polled.
void watch_the_clock(SchedulerSelf self) {
  SchedulerState& scheduler = state(self);
  if (scheduler.core->next_deadline() == kNever && scheduler.poll_at == kNever) return;
  const double now = now_seconds();
  if (scheduler.core->next_deadline() <= now) {
    log_other(self, "deadline");
    send(self, scheduler.peers.output_processor, scheduler.core->expire_requests(now));
    scheduler.has_news = scheduler.reports_free_blocks = true;  // of the expired requests
  }
  const double next = std::min(scheduler.core->next_deadline(), scheduler.poll_at);
  if (next >= scheduler.wake_at) return;
  scheduler.wake_at = next;
  const SchedulerActor me = self;
  send_after(self, from_seconds(std::max(next - now, 0.0)), me, WakeUp{});
}

/// Open steps continue; with preempt_running their results are dropped and computed again.
void take(SchedulerSelf self, PendingReset& reset) {
  log_other(self, "reset");
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

void take(SchedulerSelf self, PendingMove& move) {
  const auto started = state(self).core->start_cache_move(move.what);
  if (!started.ok()) {
    move.promise.deliver(CacheMoved{.error = started.error()});
    return;
  }
  state(self).moving = std::move(move);
}

void take(SchedulerSelf self, PendingPause& pause) {
  log_other(self, "pause");
  SchedulerState& scheduler = state(self);
  if (pause.what.mode == PauseMode::kAbort) {
    send(self, scheduler.peers.output_processor, scheduler.core->abort_all_requests(now_seconds()));
  }
  scheduler.core->set_pause_state(pause.what.mode == PauseMode::kKeep ? PauseState::kPausedAll
                                                                      : PauseState::kPausedNew);
  scheduler.pausing.push_back(std::move(pause));
}

void answer_pauses(SchedulerSelf self, bool paused) {
  for (PendingPause& pause : std::exchange(state(self).pausing, {}))
    pause.promise.deliver(PauseStatus{paused});
}

void take(SchedulerSelf self, PendingResume& resume) {
  log_other(self, "resume");
  state(self).core->set_pause_state(PauseState::kUnpaused);
  answer_pauses(self, false);
  resume.promise.deliver(PauseStatus{false});
}

/// No request runs, and every finished one has been reported.
void complete_pause(SchedulerSelf self) {
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

/// True if the workers do not need the step.
bool is_empty(const SchedulerOutput& step) {
  return step.scheduled_ids.empty() && step.finished_ids.empty() && step.preempted_ids.empty() &&
         step.blocks_to_zero.empty() && step.block_copies.empty() &&
         step.free_encoder_identifiers.empty() && !step.reset_encoder_cache &&
         step.kv_connector_metadata.empty() && step.ec_connector_metadata.empty() &&
         !step.encode_ahead;
}

void on_planned(SchedulerSelf self) {
  SchedulerState& scheduler = state(self);
  SchedulerOutput step = scheduler.planning.result();
  step.incarnation = scheduler.incarnation;
  scheduler.planning.reset();
  log_debug("step planned", kv("step", step.step), kv("requests", step.scheduled_ids.size()),
            kv("tokens", step.total_num_scheduled_tokens),
            kv("preempted", step.preempted_ids.size()),
            kv("open_steps", scheduler.open_steps.size()));
  scheduler.has_news |= !step.scheduled_ids.empty() || !step.preempted_ids.empty();
  if (step.scheduled_ids.empty() && scheduler.open_steps.empty() && !step.encode_ahead) {
    scheduler.has_news |= scheduler.core->skip_suspect();
    if (scheduler.core->release_failed_loads()) {
      log_other(self, "failed loads released");
      scheduler.has_news = true;
    }
  }
  // With no step open, the result of the empty one keeps the loop running.
  const bool is_sent = !is_empty(step) || scheduler.open_steps.empty();
  if (scheduler.peers.log != nullptr) scheduler.peers.log->on_planned(step, is_sent);
  if (is_sent) {
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

/// Handles the messages in the inbox, then plans steps while there is work, until the core waits
/// for the caches or max_open_steps are open.
void advance(SchedulerSelf self) {
  SchedulerState& scheduler = state(self);
  while (!scheduler.asking()) {
    if (!scheduler.inbox.empty()) {
      auto message = std::move(scheduler.inbox.front());
      scheduler.inbox.pop_front();
      // Whether a result is news is known after its update. Proposals are for plans that something
      // else brings about.
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
    // The workers could not start another step before this one is sampled.
    if (scheduler.owes_grammar || !scheduler.masks.empty()) return;
    scheduler.has_news = false;
    scheduler.reports_free_blocks = false;
    scheduler.planning = scheduler.core->schedule(now_seconds());
    scheduler.planning.start([self] { on_planned(self); });
  }
}

}  // namespace

void log_other(SchedulerSelf self, std::string_view what) {
  if (state(self).peers.log != nullptr) state(self).peers.log->on_other(what);
}

void receive(SchedulerSelf self, SchedulerMessage message) {
  state(self).inbox.push_back(std::move(message));
  advance(self);
}

void receive_masks(SchedulerSelf self, const GrammarFilled& filled) {
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

}  // namespace troupe
