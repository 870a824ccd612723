// The Scheduler: drives schedule -> execute -> update, and carries the core's questions to the
// cache managers.
#include "runtime/scheduler/scheduler.hpp"

#include <chrono>
#include <deque>
#include <variant>

#include "actors/spawn.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// A step that fails this often in a row is given up, and its requests end with the error.
constexpr int kMaxStepFailures = 3;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Sends a question to an actor; the reply is set when the answer arrives. If it cannot, the
/// Scheduler cannot go on: it ends with the error, and the Supervisor, who watches it, decides.
template <class Answer, class Self, class Handle, class Question>
Reply<Answer> ask_for(Self* self, const Handle& to, Question question) {
  auto [reply, setter] = Reply<Answer>::pending();
  ask(self, to, std::move(question))
      .then([setter](Answer& answer) { setter.set(std::move(answer)); },
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
  Reply<BlockWork> take_block_work(TakeBlockWork question) override {
    return ask_for<BlockWork>(self_, to_, std::move(question));
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

struct PendingReset {
  ResetCaches what;
  caf::typed_response_promise<CachesReset> promise;
};

/// One step at a time: `planning` while the core asks, `in_flight` while the workers compute. What
/// arrives meanwhile and would change the core waits in `inbox`.
struct SchedulerState {
  SchedulerState() = default;
  static inline const char* name = "scheduler";

  SchedulerPeers peers;
  std::unique_ptr<KVCacheActorPort> kv_cache;
  std::unique_ptr<EncoderCacheActorPort> encoder_cache;
  std::unique_ptr<Scheduler> core;
  Task<SchedulerOutput> planning;
  Task<EngineCoreOutputs> updating;  ///< from a step's result
  Task<bool> recovering;             ///< from a failed step, or a reset of the caches
  std::optional<SchedulerOutput> in_flight;
  std::vector<std::variant<EngineCoreRequest, AbortRequests>> inbox;
  int num_failures = 0;
  std::deque<PendingReset> resets;
  double wake_at = kNever;  ///< when ExpireRequests arrives, if it is under way

  [[nodiscard]] bool asking() const {
    return planning.valid() || updating.valid() || recovering.valid();
  }
};

using StatefulSelf = SchedulerActor::stateful_pointer<SchedulerState>;

void advance(StatefulSelf self);
void expire(StatefulSelf self);

void report_error(StatefulSelf self, RequestId id, Error error) {
  EngineCoreOutputs outputs;
  outputs.time = now_seconds();
  outputs.outputs.push_back(
      {.id = id, .finish_reason = FinishReason::kError, .error = std::move(error)});
  send(self, state(self).peers.output_processor, std::move(outputs));
}

void take_inbox(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  for (auto& message : scheduler.inbox) {
    if (auto* request = std::get_if<EngineCoreRequest>(&message)) {
      const RequestId id = request->id;
      if (auto added = scheduler.core->add_request(std::move(*request), now_seconds());
          !added.ok()) {
        report_error(self, id, added.error());
      }
    } else {
      static_cast<void>(scheduler.core->finish_requests(std::get<AbortRequests>(message).ids,
                                                        RequestStatus::kFinishedAborted));
    }
  }
  scheduler.inbox.clear();
}

void on_planned(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  SchedulerOutput step = scheduler.planning.result();
  scheduler.planning.reset();
  log_debug("step planned", kv("step", step.step), kv("requests", step.scheduled_ids.size()),
            kv("tokens", step.total_num_scheduled_tokens),
            kv("preempted", step.preempted_ids.size()));
  send(self, scheduler.peers.executor, step);
  scheduler.in_flight = std::move(step);
  expire(self);
}

/// Ends the requests whose time is up. A timer runs only while some request has a limit.
void expire(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  if (scheduler.asking() || scheduler.core->next_deadline() == kNever) return;
  const double now = now_seconds();
  if (scheduler.core->next_deadline() <= now) {
    send(self, scheduler.peers.output_processor, scheduler.core->expire_requests(now));
  }
  const double next = scheduler.core->next_deadline();
  if (next >= scheduler.wake_at) return;
  scheduler.wake_at = next;
  const SchedulerActor me = self;
  send_after(self,
             std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::duration<double>(next - now)),
             me, ExpireRequests{});
}

void reset_caches(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  PendingReset reset = std::move(scheduler.resets.front());
  scheduler.resets.pop_front();
  if (reset.what.encoder_cache) scheduler.core->reset_encoder_cache();
  if (!reset.what.prefix_cache) {
    reset.promise.deliver(CachesReset{true});
    return advance(self);
  }
  scheduler.recovering =
      scheduler.core->reset_prefix_cache(reset.what.preempt_running, now_seconds());
  scheduler.recovering.start([self, promise = reset.promise]() mutable {
    const bool ok = state(self).recovering.result();
    state(self).recovering.reset();
    log_info("prefix cache reset", kv("done", ok));
    promise.deliver(CachesReset{ok});
    advance(self);
  });
}

/// Starts the next step if there is something to do and nothing is under way.
void advance(StatefulSelf self) {
  SchedulerState& scheduler = state(self);
  if (scheduler.asking()) return;
  take_inbox(self);
  expire(self);
  if (scheduler.in_flight) return;
  if (!scheduler.resets.empty()) return reset_caches(self);
  if (!scheduler.core->has_requests()) {
    scheduler.core->flush();
    return;
  }
  scheduler.planning = scheduler.core->schedule(now_seconds());
  scheduler.planning.start([self] { on_planned(self); });
}

/// Nothing of the failed step counts: its requests wait again, and no block it was to fill stays in
/// the prefix cache.
void recover(StatefulSelf self, const Error& error) {
  SchedulerState& scheduler = state(self);
  const SchedulerOutput step = std::move(*scheduler.in_flight);
  scheduler.in_flight.reset();
  ++scheduler.num_failures;
  log_warning("step failed", kv("step", step.step), kv("requests", step.scheduled_ids.size()),
              kv("failures", scheduler.num_failures), kv("error", error.message));
  if (scheduler.num_failures == kMaxStepFailures) {
    static_cast<void>(
        scheduler.core->finish_requests(step.scheduled_ids, RequestStatus::kFinishedError));
    for (const RequestId id : step.scheduled_ids) report_error(self, id, error);
    scheduler.num_failures = 0;
  }
  scheduler.recovering = scheduler.core->recover_from_failed_step(step, now_seconds());
  scheduler.recovering.start([self] {
    state(self).recovering.reset();
    advance(self);
  });
}

SchedulerActor::behavior_type scheduler_behavior(StatefulSelf self, const SchedulerConfig& config,
                                                 const SchedulerPeers& peers) {
  SchedulerState& scheduler = state(self);
  scheduler.peers = peers;
  scheduler.kv_cache = std::make_unique<KVCacheActorPort>(self, peers.kv_cache_manager);
  if (peers.encoder_cache_manager) {
    scheduler.encoder_cache =
        std::make_unique<EncoderCacheActorPort>(self, peers.encoder_cache_manager);
  }
  scheduler.core =
      std::make_unique<Scheduler>(config, *scheduler.kv_cache, scheduler.encoder_cache.get());
  return {
      [self](EngineCoreRequest& request) {
        state(self).inbox.emplace_back(std::move(request));
        advance(self);
      },
      [self](AbortRequests& abort) {
        state(self).inbox.emplace_back(std::move(abort));
        advance(self);
      },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        auto promise = self->make_response_promise<CachesReset>();
        state(self).resets.push_back({what, promise});
        advance(self);
        return promise;
      },
      [self](ModelRunnerOutput& result) {
        SchedulerState& scheduler = state(self);
        if (!scheduler.in_flight || scheduler.in_flight->step != result.step) return;
        SchedulerOutput step = std::move(*scheduler.in_flight);
        scheduler.in_flight.reset();
        scheduler.num_failures = 0;
        take_inbox(self);  // an abort that came meanwhile ends its request with this step
        auto on_updated = [self, drafts = std::move(result.draft_token_ids)] {
          SchedulerState& scheduler = state(self);
          send(self, scheduler.peers.output_processor, scheduler.updating.result());
          scheduler.core->update_draft_token_ids(drafts);
          scheduler.updating.reset();
          advance(self);
        };
        scheduler.updating =
            scheduler.core->update_from_output(std::move(step), std::move(result), now_seconds());
        scheduler.updating.start(std::move(on_updated));
      },
      [self](const StepFailed& failure) {
        if (state(self).in_flight && state(self).in_flight->step == failure.step)
          recover(self, failure.error);
      },
      [self](const ExpireRequests&) {
        state(self).wake_at = kNever;
        expire(self);
        advance(self);  // the caches are to hear of what has ended
      },
  };
}

}  // namespace

SchedulerActor spawn_scheduler(caf::actor_system& system, const SchedulerConfig& config,
                               const SchedulerPeers& peers) {
  return system.spawn(scheduler_behavior, config, peers);
}

}  // namespace troupe
