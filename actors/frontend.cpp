// The Frontend: the HTTP server's side of the engine, and what keeps its requests alive when the
// engine is replaced.
#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/server.hpp"
#include "runtime/processors/request_journal.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kRenderDeadline = 60s;
constexpr auto kResetDeadline = 60s;
constexpr auto kPauseDeadline = 10min;  // requests may run to their end before
constexpr auto kSubscribeDeadline = 60s;
constexpr std::size_t kMaxRenders = 1024;  ///< without an answer yet
constexpr int kMaxRenderTries = 3;

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

/// What the server's threads call. Thread-safe: a counter, a flag, and messages.
class FrontendPort final : public EnginePort {
 public:
  explicit FrontendPort(caf::actor_system& system) : system_(system) {
    // Ids are never given out twice, also not by the next life of this process.
    next_id_ = (std::uint64_t{std::random_device{}()} << 32) + 1;
  }
  void connect(FrontendActor frontend) { frontend_ = std::move(frontend); }
  void set_healthy(bool healthy) { healthy_ = healthy; }

  RequestId allocate_ids(std::int32_t count) override {
    return RequestId{next_id_.fetch_add(static_cast<std::uint64_t>(count))};
  }
  void submit(GenerateRequest request) override { post(frontend_, std::move(request)); }
  void abort(std::vector<RequestId> ids) override {
    post(frontend_, AbortRequests{std::move(ids)});
  }
  void render(RenderRequest request, std::function<void(RenderReply)> reply) override {
    ask_frontend<RenderReply>(
        kRenderDeadline, std::move(request),
        [reply = std::move(reply)](Result<RenderReply> answer) {
          reply(answer.ok() ? std::move(answer).value() : RenderReply{.error = answer.error()});
        });
  }
  void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) override {
    ask_frontend<CachesReset>(kResetDeadline, what, std::move(reply));
  }
  void pause(PauseScheduler what, PauseReply reply) override {
    ask_frontend<PauseStatus>(kPauseDeadline, what, std::move(reply));
  }
  void resume(PauseReply reply) override {
    ask_frontend<PauseStatus>(kResetDeadline, ResumeScheduler{}, std::move(reply));
  }
  void ask_paused(PauseReply reply) override {
    ask_frontend<PauseStatus>(kResetDeadline, AskPaused{}, std::move(reply));
  }
  [[nodiscard]] bool healthy() const noexcept override { return healthy_; }

 private:
  template <class Answer, class Question>
  void ask_frontend(std::chrono::nanoseconds deadline, Question question,
                    std::function<void(Result<Answer>)> reply) {
    system_.spawn<caf::hidden>([to = frontend_, deadline, question = std::move(question),
                                reply = std::move(reply)](caf::event_based_actor* self) {
      ask(self, to, deadline, question)
          .then([reply](Answer& answer) { reply(std::move(answer)); },
                [reply, self](const caf::error& error) {
                  const bool late = error == caf::sec::request_timeout;
                  reply(Error{late ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
                              "the engine gave no answer: " + to_text(error, self->system())});
                });
    });
  }

  caf::actor_system& system_;
  FrontendActor frontend_;
  std::atomic<std::uint64_t> next_id_;
  std::atomic<bool> healthy_{true};
};

/// The engine that requests go to.
struct EngineLink {
  std::vector<InputProcessorActor> input_processors;
  OutputProcessorActor output_processor;
  SchedulerActor scheduler;

  [[nodiscard]] const InputProcessorActor& input_processor(std::uint64_t number) const {
    return input_processors[number % input_processors.size()];
  }
  /// False for the actors of an engine that has been replaced.
  [[nodiscard]] bool has(const caf::strong_actor_ptr& actor) const {
    const auto is_sender = [&](const auto& handle) {
      return caf::actor_cast<caf::strong_actor_ptr>(handle) == actor;
    };
    return is_sender(output_processor) ||
           std::any_of(input_processors.begin(), input_processors.end(), is_sender);
  }
};

/// A question to an InputProcessor, asked again if that one's engine is replaced.
struct PendingRender {
  RenderRequest request;
  caf::typed_response_promise<RenderReply> promise;
  int num_tries = 0;
};

/// Owns the server, its port to the engine, and the journal of the requests that clients wait for.
struct FrontendState {
  FrontendState() = default;
  static inline const char* name = "frontend";

  ServerConfig config;
  std::unique_ptr<EngineMetrics> metrics;
  std::unique_ptr<FrontendPort> port;
  std::unique_ptr<Server> server;  ///< none before Listen
  EngineLink engine;
  bool engine_ready = false;        ///< the outputs of `engine` come here
  std::optional<Error> failure;     ///< there will be no other engine
  std::optional<PauseMode> paused;  ///< by whoever; holds for the engines to come
  RequestJournal journal;
  double wake_at = std::numeric_limits<double>::infinity();  ///< when WakeUp arrives
  std::map<std::uint64_t, PendingRender> renders;
  std::uint64_t num_renders = 0;
  std::mt19937_64 random;
  std::vector<EngineTotals> logged;  ///< by engine: as of the last statistics interval
  std::int32_t num_aborted = 0;
  caf::typed_response_promise<Drained> drained;

  void deliver(RequestOutputs outputs) const {
    if (server && !outputs.outputs.empty()) server->deliver(std::move(outputs));
  }
};

using Self = FrontendActor::stateful_pointer<FrontendState>;

/// The earliest deadline of those that wait here has a timer.
void watch_deadlines(Self self) {
  FrontendState& frontend = state(self);
  const double next = frontend.journal.next_deadline();
  if (next >= frontend.wake_at) return;
  frontend.wake_at = next;
  const FrontendActor me = self;
  send_after(self, from_seconds(std::max(next - wall_seconds(), 0.0)), me, WakeUp{});
}

/// Gives the engine what waits for it, as far as it may be given.
void submit_waiting(Self self) {
  FrontendState& frontend = state(self);
  for (GenerateRequest& request : frontend.journal.take_submissions()) {
    send(self, frontend.engine.input_processor(value(request.id)), std::move(request));
  }
  watch_deadlines(self);
}

/// Tells everyone behind, through the actor that had the request before: an abort never overtakes
/// it.
void finish_abort(Self self, RequestJournal::Aborted aborted) {
  FrontendState& frontend = state(self);
  for (AbortRequests& samples : aborted.to_engine) {
    const std::uint64_t id = value(samples.ids.front());
    send(self, frontend.engine.input_processor(id), std::move(samples));
  }
  frontend.deliver(std::move(aborted.ended));
}

void abort_all(Self self) {
  state(self).num_aborted = static_cast<std::int32_t>(state(self).journal.num_live());
  finish_abort(self, state(self).journal.abort_all());
}

void try_render(Self self, std::uint64_t number) {
  FrontendState& frontend = state(self);
  PendingRender& render = frontend.renders.at(number);
  ++render.num_tries;
  ask(self, frontend.engine.input_processor(number), render.request)
      .then(
          [self, number](RenderReply& reply) {
            const auto pending = state(self).renders.extract(number);
            if (!pending.empty()) pending.mapped().promise.deliver(std::move(reply));
          },
          [](const caf::error&) {});  // another engine will be asked
}

void end_renders(Self self, const Error& error) {
  for (auto& [number, render] : std::exchange(state(self).renders, {})) {
    render.promise.deliver(RenderReply{.error = error});
  }
}

void refuse(FrontendState& frontend, RequestId id, const Error& error) {
  RequestOutputs refusal;
  refusal.outputs.push_back({.id = id, .finished = true, .error = error});
  frontend.deliver(std::move(refusal));
}

/// Whoever waits hears so, and whoever comes.
void fail_live(Self self, const std::string& reason) {
  const Error error{ErrorCode::kUnavailable, "the engine stopped: " + reason};
  state(self).failure = error;
  state(self).deliver(state(self).journal.fail_all(error));
  end_renders(self, error);
}

void lose_engine(FrontendState& frontend) {
  frontend.engine_ready = false;
  frontend.port->set_healthy(false);
  frontend.journal.engine_lost();
}

/// A new engine is paused before it gets requests. Those that an abort ended are not among them.
void pause_again(Self self) {
  FrontendState& frontend = state(self);
  const PauseMode mode = frontend.paused == PauseMode::kKeep ? PauseMode::kKeep : PauseMode::kWait;
  ask(self, frontend.engine.scheduler, PauseScheduler{.mode = mode})
      .then([](const PauseStatus&) {}, [](const caf::error&) {});
}

/// The engine's outputs come here from now on: it gets what there is to do.
void on_subscribed(Self self) {
  FrontendState& frontend = state(self);
  frontend.engine_ready = true;
  if (frontend.paused) pause_again(self);
  frontend.port->set_healthy(true);
  frontend.journal.engine_ready();
  submit_waiting(self);
  for (auto next = frontend.renders.begin(); next != frontend.renders.end();) {
    const auto current = next++;
    if (current->second.num_tries < kMaxRenderTries) {
      try_render(self, current->first);
      continue;
    }
    const auto ended = frontend.renders.extract(current);
    ended.mapped().promise.deliver(
        RenderReply{.error = Error{ErrorCode::kInternal,
                                   "the engine was lost " + std::to_string(kMaxRenderTries) +
                                       " times before it answered this request"}});
  }
}

void connect_engine(Self self, EngineLink engine) {
  state(self).engine = std::move(engine);
  const OutputProcessorActor to = state(self).engine.output_processor;
  ask(self, to, kSubscribeDeadline, Subscribe{})
      .then(
          [self, to](const Status&) {
            if (state(self).engine.output_processor == to) on_subscribed(self);
          },
          [self](const caf::error& error) {
            // Whoever watches it replaces it.
            log_warning("the output processor took no subscription",
                        kv("error", to_text(error, self->system())));
          });
}

/// One line for each engine that has done something since the last time.
void log_stats(FrontendState& frontend) {
  for (std::uint32_t engine = 0; engine < frontend.metrics->num_engines(); ++engine) {
    const EngineTotals now = frontend.metrics->totals(engine);
    EngineTotals& before = frontend.logged[engine];
    if (now != before || now.running > 0) {
      log_line(LogLevel::kInfo,
               format_stats_line(engine, before, now, frontend.config.log_stats_interval_s));
    }
    before = now;
  }
}

void log_stats_later(Self self) {
  const double interval_s = state(self).config.log_stats_interval_s;
  if (interval_s <= 0) return;
  const FrontendActor me = self;
  send_after(self, from_seconds(interval_s), me, LogStats{});
}

FrontendActor::behavior_type frontend_behavior(
    Self self, const ServerConfig& config, const std::vector<InputProcessorActor>& input_processors,
    const OutputProcessorActor& output_processor, const SchedulerActor& scheduler,
    std::uint64_t seed) {
  FrontendState& frontend = state(self);
  frontend.config = config;
  frontend.random.seed(seed);
  frontend.metrics = std::make_unique<EngineMetrics>(config.service.model_names.front(),
                                                     config.service.defaults.max_model_len);
  frontend.metrics->set_cache_config(0, config.cache_config);
  frontend.logged.resize(frontend.metrics->num_engines());
  frontend.port = std::make_unique<FrontendPort>(self->system());
  connect_engine(self, {input_processors, output_processor, scheduler});
  return {
      [self](const Listen&) -> Listening {
        FrontendState& frontend = state(self);
        frontend.port->connect(self);
        auto server = Server::start(frontend.config, *frontend.port, *frontend.metrics);
        if (!server.ok()) return {.error = server.error()};
        frontend.server = std::move(server).value();
        log_stats_later(self);
        return {.port = frontend.server->port()};
      },
      [self](GenerateRequest& request) {
        FrontendState& frontend = state(self);
        if (frontend.failure) return refuse(frontend, request.id, *frontend.failure);
        request.params.philox_key =
            frontend.random();  // drawn once: kept wherever the request is run again
        const RequestId id = request.id;
        if (const auto added = frontend.journal.add(std::move(request)); !added.ok()) {
          return refuse(frontend, id, added.error());
        }
        submit_waiting(self);
      },
      [self](const AbortRequests& abort) {
        finish_abort(self, state(self).journal.abort(abort.ids));
        submit_waiting(self);
      },
      [self](RenderRequest& request) -> caf::result<RenderReply> {
        FrontendState& frontend = state(self);
        if (frontend.failure) return RenderReply{.error = frontend.failure};
        if (frontend.renders.size() >= kMaxRenders) {
          return RenderReply{.error = Error{ErrorCode::kOverloaded,
                                            std::to_string(kMaxRenders) +
                                                " requests wait for an input processor, as many "
                                                "as may"}};
        }
        const std::uint64_t number = frontend.num_renders++;
        auto promise = self->make_response_promise<RenderReply>();
        frontend.renders.emplace(number, PendingRender{std::move(request), promise});
        if (frontend.engine_ready) try_render(self, number);
        return promise;
      },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        return self->delegate(state(self).engine.scheduler, what);
      },
      [self](const PauseScheduler& what) -> caf::result<PauseStatus> {
        state(self).paused = what.mode;
        return self->delegate(state(self).engine.scheduler, what);
      },
      [self](const ResumeScheduler& what) -> caf::result<PauseStatus> {
        state(self).paused.reset();
        return self->delegate(state(self).engine.scheduler, what);
      },
      [self](const AskPaused& what) -> caf::result<PauseStatus> {
        return self->delegate(state(self).engine.scheduler, what);
      },
      [self](RequestOutputs& outputs) {
        FrontendState& frontend = state(self);
        if (!frontend.engine.has(self->current_sender())) return;
        const bool others_may_wait = frontend.journal.in_quarantine();
        frontend.journal.record(outputs);
        frontend.server->deliver(std::move(outputs));
        if (others_may_wait) submit_waiting(self);
      },
      [self](const EngineLost& lost) {
        FrontendState& frontend = state(self);
        lose_engine(frontend);
        log_warning("engine lost", kv("reason", lost.reason),
                    kv("requests", frontend.journal.num_live()));
        watch_deadlines(self);
      },
      [self](const EngineReplaced& replaced, std::vector<InputProcessorActor>& input_processors,
             const OutputProcessorActor& output_processor, const SchedulerActor& scheduler) {
        FrontendState& frontend = state(self);
        lose_engine(frontend);
        RequestJournal::Replaced taken_back = frontend.journal.engine_replaced(replaced.crashed);
        log_info("engine replaced", kv("crashed", replaced.crashed),
                 kv("resubmitted", taken_back.num_resubmissions),
                 kv("ended", taken_back.ended.outputs.size()),
                 kv("quarantine", frontend.journal.in_quarantine()));
        frontend.metrics->observe_resubmissions(taken_back.num_resubmissions);
        frontend.deliver(std::move(taken_back.ended));
        connect_engine(self, {std::move(input_processors), output_processor, scheduler});
      },
      [self](const EngineHealth& health) {
        state(self).port->set_healthy(health.healthy);
        state(self).failure.reset();
        if (!health.healthy) fail_live(self, health.reason);
      },
      [self](const Drain& drain) -> caf::result<Drained> {
        FrontendState& frontend = state(self);
        frontend.drained = self->make_response_promise<Drained>();
        const FrontendActor me = self;
        frontend.server->drain([me] { post(me, DrainProgress{DrainEvent::kIdle}); });
        const auto timeout = from_seconds(drain.timeout_s);
        if (timeout > 0ns) {
          send_after(self, timeout, me, DrainProgress{DrainEvent::kTimeout});
        } else {
          abort_all(self);
        }
        return frontend.drained;
      },
      [self](const DrainProgress& progress) {
        FrontendState& frontend = state(self);
        if (progress.event == DrainEvent::kTimeout) {
          abort_all(self);
        } else if (frontend.drained.pending()) {
          frontend.drained.deliver(Drained{frontend.num_aborted});
        }
      },
      [self](const WakeUp&) {
        FrontendState& frontend = state(self);
        frontend.wake_at = std::numeric_limits<double>::infinity();
        frontend.deliver(frontend.journal.expire(wall_seconds()));
        submit_waiting(self);
      },
      [self](const LogStats&) {
        log_stats(state(self));
        log_stats_later(self);
      },
  };
}

}  // namespace

FrontendActor spawn_frontend(caf::actor_system& system, const ServerConfig& config,
                             std::vector<InputProcessorActor> input_processors,
                             OutputProcessorActor output_processor, SchedulerActor scheduler,
                             std::uint64_t seed) {
  return system.spawn(frontend_behavior, config, std::move(input_processors),
                      std::move(output_processor), std::move(scheduler), seed);
}

}  // namespace troupe
