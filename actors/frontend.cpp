// The Frontend: the HTTP server's side of the engine, shares requests out to its groups, and keeps
// them alive when a group is lost.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "actors/frontend_port.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/server.hpp"
#include "runtime/processors/request_journal.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kSubscribeDeadline = 60s;
/// For clients to take the end of what was aborted; who does not read would hold up the shutdown.
constexpr auto kLastAnswers = 2s;
constexpr std::size_t kMaxRenders = 1024;  ///< without an answer yet
constexpr int kMaxRenderTries = 3;

/// The engine of a group, which requests go to.
struct EngineLink {
  bool ready = false;  ///< its outputs come here
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

/// A question to an InputProcessor, asked again if that one's engine is replaced. It ends when it
/// is answered, or its client has left.
struct PendingRender {
  RenderRequest request;
  caf::typed_response_promise<RenderReply> promise;
  int num_tries = 0;
  std::optional<std::size_t> group = std::nullopt;  ///< that has been asked; none: it waits
};

/// A group that gets no more requests.
struct GroupDrain {
  caf::typed_response_promise<Status> promise;
  std::uint64_t number = 0;  ///< dates its timeout
};

/// Owns the server, its port to the engine, and the journal of the requests that clients wait for.
struct FrontendState {
  FrontendState() = default;
  static inline const char* name = "frontend";

  ServerConfig config;
  std::unique_ptr<EngineMetrics> metrics;
  std::unique_ptr<FrontendPort> port;
  std::unique_ptr<Server> server;                 ///< none before Listen
  SupervisorActor supervisor;                     ///< who says EngineReady
  std::vector<std::optional<EngineLink>> groups;  ///< none: lost, or not there yet
  std::optional<Error> failure;                   ///< there will be no other engine
  std::optional<PauseMode> paused;                ///< by whoever; holds for the engines to come
  std::unique_ptr<RequestJournal> journal;
  std::unique_ptr<Coordinator> coordinator;
  std::map<std::uint32_t, GroupDrain> draining;  ///< by group
  std::uint64_t num_drains = 0;
  double wake_at = std::numeric_limits<double>::infinity();  ///< when WakeUp arrives
  std::map<RequestId, PendingRender> renders;
  std::vector<EngineTotals> logged;  ///< by engine: as of the last statistics interval
  std::int32_t num_aborted = 0;
  caf::typed_response_promise<Drained> drained;

  void deliver(RequestOutputs outputs) const {
    if (server && !outputs.outputs.empty()) server->deliver(std::move(outputs));
  }
  /// The group that the actor belongs to; none if that one has been lost.
  [[nodiscard]] std::optional<std::size_t> group_of(const caf::strong_actor_ptr& actor) const {
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group] && groups[group]->has(actor)) return group;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool has_ready_group() const {
    return std::any_of(groups.begin(), groups.end(),
                       [](const auto& link) { return link && link->ready; });
  }
  /// Any that can be asked, another one for each number. Pre: has_ready_group().
  [[nodiscard]] std::size_t any_group(std::uint64_t number) const {
    std::size_t group = number % groups.size();
    while (!groups[group] || !groups[group]->ready) group = (group + 1) % groups.size();
    return group;
  }
};

using Self = FrontendActor::stateful_pointer<FrontendState>;

/// The earliest deadline of those that wait here has a timer.
void watch_deadlines(Self self) {
  FrontendState& frontend = state(self);
  const double next = frontend.journal->next_deadline();
  if (next >= frontend.wake_at) return;
  frontend.wake_at = next;
  const FrontendActor me = self;
  send_after(self, from_seconds(std::max(next - wall_seconds(), 0.0)), me, WakeUp{});
}

void refuse(FrontendState& frontend, RequestId id, const Error& error) {
  RequestOutputs refusal;
  refusal.outputs.push_back({.id = id, .finished = true, .error = error});
  frontend.deliver(std::move(refusal));
}

/// Gives the groups what waits for them, as far as it may be given.
void submit_waiting(Self self) {
  FrontendState& frontend = state(self);
  std::size_t num_again = 0;
  const double now = wall_seconds();
  for (auto& [group, request, again, error] :
       frontend.journal->take_submissions(*frontend.coordinator)) {
    if (error) {
      refuse(frontend, request.id, *error);
      continue;
    }
    num_again += again;
    request.age_s = std::max(now - request.arrival_time, 0.0);
    send(self, frontend.groups[group]->input_processor(value(request.id)), std::move(request));
  }
  frontend.metrics->observe_resubmissions(num_again);
  watch_deadlines(self);
}

/// Tells everyone behind, through the actor that had the request before: an abort never overtakes
/// it.
void finish_abort(Self self, RequestJournal::Aborted aborted) {
  FrontendState& frontend = state(self);
  for (auto& [group, samples] : aborted.to_engine) {
    const std::uint64_t id = value(samples.ids.front());
    send(self, frontend.groups[group]->input_processor(id), std::move(samples));
  }
  frontend.deliver(std::move(aborted.ended));
}

void try_render(Self self, RequestId id) {
  FrontendState& frontend = state(self);
  PendingRender& render = frontend.renders.at(id);
  ++render.num_tries;
  render.group = frontend.any_group(value(id));
  ask(self, frontend.groups[*render.group]->input_processor(value(id)), render.request)
      .then(
          [self, id](RenderReply& reply) {
            const auto pending = state(self).renders.extract(id);
            if (!pending.empty()) pending.mapped().promise.deliver(std::move(reply));
          },
          [](const caf::error&) {});  // another group will be asked
}

/// Whoever waits hears why; whoever is at it stops.
void end_render(Self self, RequestId id, const Error& error) {
  FrontendState& frontend = state(self);
  auto ended = frontend.renders.extract(id);
  if (ended.empty()) return;
  PendingRender& render = ended.mapped();
  if (render.group && frontend.groups[*render.group]) {
    send(self, frontend.groups[*render.group]->input_processor(value(id)), AbortRequests{{id}});
  }
  render.promise.deliver(RenderReply{.error = error});
}

void end_renders(Self self, const Error& error) {
  while (!state(self).renders.empty()) end_render(self, state(self).renders.begin()->first, error);
}

void abort_all(Self self) {
  state(self).num_aborted = static_cast<std::int32_t>(state(self).journal->num_live());
  finish_abort(self, state(self).journal->abort_all());
  end_renders(self, {ErrorCode::kOverloaded, "the server is shutting down", ""});
  const FrontendActor me = self;
  send_after(self, kLastAnswers, me, DrainProgress{DrainEvent::kIdle});
}

/// Calls f(), whose work is for these requests. What it throws ends them, and nothing else.
template <class Function>
void fail_alone(Self self, const std::vector<RequestId>& ids, Function&& f) {
  const std::optional<Error> error = guard(std::forward<Function>(f));
  if (!error) return;
  log_warning("request failed in the frontend", kv("requests", ids.size()),
              kv("error", error->message));
  for (const RequestId id : ids) refuse(state(self), id, *error);
  finish_abort(self, state(self).journal->abort(ids));
}

/// Whoever waits hears so, and whoever comes.
void fail_live(Self self, const std::string& reason) {
  const Error error{ErrorCode::kUnavailable, "the engine stopped: " + reason};
  state(self).failure = error;
  state(self).deliver(state(self).journal->fail_all(error));
  end_renders(self, error);
}

/// Asks for those that wait, if there is a group to be asked.
void try_waiting_renders(Self self) {
  FrontendState& frontend = state(self);
  if (!frontend.has_ready_group()) return;
  for (auto next = frontend.renders.begin(); next != frontend.renders.end();) {
    const auto current = next++;
    if (current->second.group) continue;
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

/// What the group had goes on in another one, or waits for the next.
void lose_engine(Self self, const EngineLost& lost) {
  FrontendState& frontend = state(self);
  frontend.groups[lost.group].reset();
  frontend.coordinator->forget(lost.group);
  frontend.metrics->observe_loss(lost.group);
  frontend.port->set_healthy(frontend.has_ready_group());
  RequestJournal::Lost taken_back =
      frontend.journal->group_lost(lost.group, lost.cause, lost.returns);
  log_warning("engine lost", kv("group", lost.group), kv("reason", lost.reason),
              kv("crashed", lost.cause == LossCause::kCrashed), kv("returns", lost.returns),
              kv("requests", taken_back.num_resubmissions),
              kv("ended", taken_back.ended.outputs.size()),
              kv("quarantine", frontend.journal->in_quarantine()));
  frontend.deliver(std::move(taken_back.ended));
  submit_waiting(self);
  for (auto& [id, render] : frontend.renders) {
    if (render.group == lost.group) render.group.reset();
  }
  try_waiting_renders(self);
}

/// A new engine is paused before it gets requests. Those that an abort ended are not among them.
void pause_again(Self self, const EngineLink& engine) {
  const PauseMode mode =
      state(self).paused == PauseMode::kKeep ? PauseMode::kKeep : PauseMode::kWait;
  ask(self, engine.scheduler, PauseScheduler{.mode = mode})
      .then([](const PauseStatus&) {}, [](const caf::error&) {});
}

/// The group's outputs come here from now on: it gets what there is to do.
void on_subscribed(Self self, std::size_t group) {
  FrontendState& frontend = state(self);
  frontend.groups[group]->ready = true;
  if (frontend.paused) pause_again(self, *frontend.groups[group]);
  frontend.port->set_healthy(true);
  frontend.journal->group_ready(group);
  submit_waiting(self);
  try_waiting_renders(self);
}

void connect_engine(Self self, std::size_t group, EngineLink engine) {
  const OutputProcessorActor to = engine.output_processor;
  state(self).groups[group] = std::move(engine);
  ask(self, to, kSubscribeDeadline, Subscribe{})
      .then(
          [self, group, to](const Status&) {
            const std::optional<EngineLink>& link = state(self).groups[group];
            if (link && link->output_processor == to) on_subscribed(self, group);
          },
          [self](const caf::error& error) {
            // Whoever watches it replaces it.
            log_warning("the output processor took no subscription",
                        kv("error", to_text(error, self->system())));
          });
}

/// Asks the Schedulers of all groups; when every one has answered, or is gone, `join` makes one
/// answer of theirs.
template <class Answer, class Question>
caf::result<Answer> ask_groups(Self self, const Question& question,
                               Answer (*join)(const std::vector<Answer>&)) {
  struct Pending {
    std::size_t num_missing = 0;
    std::vector<Answer> answers;
  };
  const auto pending = std::make_shared<Pending>();
  auto promise = self->make_response_promise<Answer>();
  std::vector<SchedulerActor> schedulers;
  for (const std::optional<EngineLink>& link : state(self).groups) {
    if (link) schedulers.push_back(link->scheduler);
  }
  if (schedulers.empty()) promise.deliver(exit_reason_of("no group is ready"));
  pending->num_missing = schedulers.size();
  auto finish = [pending, promise, join]() mutable {
    if (--pending->num_missing > 0) return;
    if (pending->answers.empty()) {
      promise.deliver(exit_reason_of("all groups were lost"));
    } else {
      promise.deliver(join(pending->answers));
    }
  };
  for (const SchedulerActor& scheduler : schedulers) {
    ask(self, scheduler, kPauseDeadline, question)
        .then(
            [pending, finish](const Answer& answer) mutable {
              pending->answers.push_back(answer);
              finish();
            },
            [finish](const caf::error&) mutable { finish(); });
  }
  return promise;
}

CachesReset join_resets(const std::vector<CachesReset>& resets) {
  return {std::all_of(resets.begin(), resets.end(), [](const auto& reset) { return reset.ok; })};
}

PauseStatus join_pauses(const std::vector<PauseStatus>& pauses) {
  return {
      std::all_of(pauses.begin(), pauses.end(), [](const auto& status) { return status.paused; })};
}

/// The Supervisor did not end the group: it stays, unless it has been lost meanwhile. One that is
/// ended later after all, as its answer was only late, is lost like any other.
void reopen_group(Self self, std::uint32_t group, const std::string& reason) {
  log_warning("drained group not ended", kv("group", group), kv("reason", reason));
  const std::optional<EngineLink>& link = state(self).groups[group];
  if (!link || !link->ready) return;
  state(self).journal->group_ready(group);
  submit_waiting(self);
}

/// The group drains no longer: what it still has goes on elsewhere.
void end_drained_group(Self self, std::uint32_t group) {
  FrontendState& frontend = state(self);
  auto promise = std::move(frontend.draining.extract(group).mapped().promise);
  log_info("group drained", kv("group", group), kv("moved", frontend.journal->num_in(group)));
  ask(self, frontend.supervisor, kControlDeadline, EndGroup{group})
      .then(
          [self, group, promise](const Status& status) mutable {
            if (status.error) reopen_group(self, group, status.error->message);
            promise.deliver(status);
          },
          [self, group, promise](const caf::error& error) mutable {
            reopen_group(self, group, to_text(error, self->system()));
            promise.deliver(error);
          });
}

void end_idle_groups(Self self) {
  std::vector<std::uint32_t> idle;
  for (const auto& [group, drain] : state(self).draining) {
    if (state(self).journal->num_in(group) == 0) idle.push_back(group);
  }
  for (const std::uint32_t group : idle) end_drained_group(self, group);
}

/// Why the group cannot be drained.
std::optional<Error> refuse_drain(const FrontendState& frontend, std::uint32_t group) {
  const std::string name = "group " + std::to_string(group);
  if (group >= frontend.groups.size()) {
    return invalid_argument(
        name + ": the groups are 0 to " + std::to_string(frontend.groups.size() - 1), "group");
  }
  if (frontend.draining.contains(group)) return invalid_argument(name + " drains already", "group");
  for (std::size_t other = 0; other < frontend.groups.size(); ++other) {
    const std::optional<EngineLink>& link = frontend.groups[other];
    const bool drains = frontend.draining.contains(static_cast<std::uint32_t>(other));
    if (other != group && link && link->ready && !drains) return std::nullopt;
  }
  return invalid_argument("no other group than " + std::to_string(group) + " takes requests",
                          "group");
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

FrontendActor::behavior_type frontend_behavior(Self self, const ServerConfig& config,
                                               std::uint64_t seed) {
  FrontendState& frontend = state(self);
  frontend.config = config;
  const auto num_groups = static_cast<std::uint32_t>(config.service.defaults.data_parallel_size);
  frontend.groups.resize(num_groups);
  frontend.journal = std::make_unique<RequestJournal>(num_groups);
  frontend.coordinator = std::make_unique<Coordinator>(num_groups);
  frontend.metrics = std::make_unique<EngineMetrics>(
      config.service.model_names.front(), config.service.defaults.max_model_len, num_groups);
  for (std::uint32_t group = 0; group < num_groups; ++group)
    frontend.metrics->set_cache_config(group, config.cache_config);
  frontend.logged.resize(frontend.metrics->num_engines());
  frontend.port = std::make_unique<FrontendPort>(self->system(), seed);
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
      [self](SubmitRequest& submission) {
        FrontendState& frontend = state(self);
        const RequestId id = submission.request.id;
        if (frontend.failure) return refuse(frontend, id, *frontend.failure);
        // Drawn here, a key outlives the engine: whoever goes on with the request has it too.
        SamplingParams& params = submission.request.params;
        if (params.philox_key == 0) params.philox_key = frontend.port->draw_key();
        fail_alone(self, {id}, [&] {
          const auto added = frontend.journal->add(std::move(submission));
          if (!added.ok()) return refuse(frontend, id, added.error());
          submit_waiting(self);
        });
      },
      [self](const AbortRequests& abort) {
        for (const RequestId id : abort.ids)
          end_render(self, id, {ErrorCode::kAborted, "the client has left", ""});
        finish_abort(self, state(self).journal->abort(abort.ids));
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
        const RequestId id = request.id;
        if (frontend.renders.contains(id)) {
          return RenderReply{
              .error = invalid_argument("id " + to_string(id) + " is another request's", "id")};
        }
        auto promise = self->make_response_promise<RenderReply>();
        auto thrown = guard([&] {
          frontend.renders.emplace(id, PendingRender{std::move(request), promise});
          if (frontend.has_ready_group()) try_render(self, id);
        });
        if (thrown) {
          frontend.renders.erase(id);
          promise.deliver(RenderReply{.error = std::move(thrown)});
        }
        return promise;
      },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        return ask_groups<CachesReset>(self, what, join_resets);
      },
      [self](const PauseScheduler& what) -> caf::result<PauseStatus> {
        state(self).paused = what.mode;
        return ask_groups<PauseStatus>(self, what, join_pauses);
      },
      [self](const ResumeScheduler& what) -> caf::result<PauseStatus> {
        state(self).paused.reset();
        return ask_groups<PauseStatus>(self, what, join_pauses);
      },
      [self](const AskPaused& what) -> caf::result<PauseStatus> {
        return ask_groups<PauseStatus>(self, what, join_pauses);
      },
      [self](RequestOutputs& outputs) {
        FrontendState& frontend = state(self);
        const auto group = frontend.group_of(self->current_sender());
        if (!group) return;
        outputs.stats.engine_index = static_cast<std::uint32_t>(*group);
        if (const auto& load = outputs.stats.scheduler)
          frontend.coordinator->observe(*group, *load);
        for (const RequestJournal::Failure& failed : frontend.journal->record(outputs)) {
          refuse(frontend, failed.id, failed.error);
          finish_abort(self, frontend.journal->abort({&failed.id, 1}));
        }
        // Null before Listen, and where Listen failed.
        if (frontend.server) frontend.server->deliver(std::move(outputs));
        if (frontend.journal->has_waiting()) submit_waiting(self);
        if (!frontend.draining.empty()) end_idle_groups(self);
      },
      [self](const EngineLost& lost) {
        lose_engine(self, lost);
        end_idle_groups(self);
      },
      [self](const EngineReady& ready, std::vector<InputProcessorActor>& input_processors,
             const OutputProcessorActor& output_processor, const SchedulerActor& scheduler) {
        state(self).supervisor = caf::actor_cast<SupervisorActor>(self->current_sender());
        connect_engine(self, ready.group,
                       {.input_processors = std::move(input_processors),
                        .output_processor = output_processor,
                        .scheduler = scheduler});
      },
      [self](const DrainGroup& what) -> caf::result<Status> {
        FrontendState& frontend = state(self);
        if (auto refusal = refuse_drain(frontend, what.group)) return Status{*std::move(refusal)};
        auto promise = self->make_response_promise<Status>();
        const std::uint64_t number = ++frontend.num_drains;
        frontend.draining.emplace(what.group, GroupDrain{promise, number});
        frontend.journal->close_group(what.group);
        const FrontendActor me = self;
        send_after(self, from_seconds(what.timeout_s), me, GroupDrainTimeout{what.group, number});
        end_idle_groups(self);
        return promise;
      },
      [self](const GroupDrainTimeout& timeout) {
        const auto drain = state(self).draining.find(timeout.group);
        if (drain != state(self).draining.end() && drain->second.number == timeout.drain)
          end_drained_group(self, timeout.group);
      },
      [self](const AskTopology& what) -> caf::result<TopologyStatus> {
        return delegate(self, state(self).supervisor, what);
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
        if (frontend.server)
          frontend.server->drain([me] { post(me, DrainProgress{DrainEvent::kIdle}); });
        else
          post(me, DrainProgress{DrainEvent::kIdle});
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
        frontend.deliver(frontend.journal->expire(wall_seconds()));
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
                             std::uint64_t seed) {
  return system.spawn(frontend_behavior, config, seed);
}

}  // namespace troupe
