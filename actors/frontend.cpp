// The Frontend: the HTTP server in front of the RequestRouter. If that runs in another process, the
// Frontend keeps a journal of its own, so that requests survive the RequestRouter as well.
#include <algorithm>
#include <limits>
#include <optional>

#include "actors/deadlines.hpp"
#include "actors/frontend_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace frontend {
namespace {

using namespace std::chrono_literals;

/// For clients to read the end of aborted requests: one that does not must not delay the shutdown.
constexpr auto kLastAnswers = 2s;
/// The RequestRouter's number in the journal.
constexpr std::size_t kRouter = 0;

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

void refuse(FrontendState& frontend, RequestId id, const Error& error) {
  RequestOutputs refusal;
  refusal.outputs.push_back({.id = id, .finished = true, .error = error});
  frontend.deliver(std::move(refusal));
}

/// Sends the RequestRouter the waiting requests.
void submit_waiting(Self self) {
  FrontendState& frontend = state(self);
  OwnJournal& journal = *frontend.journal;
  for (auto& submission : journal.requests.take_submissions(journal.coordinator)) {
    if (submission.error) {
      refuse(frontend, submission.request.id, *submission.error);
    } else {
      send(self, frontend.router,
           SubmitRequest{std::move(submission.request), std::move(submission.placement)});
    }
  }
  const double next = journal.requests.next_deadline();
  if (next >= journal.wake_at) return;
  journal.wake_at = next;
  const FrontendActor me = self;
  send_after(self, from_seconds(std::max(next - wall_seconds(), 0.0)), me, WakeUp{});
}

void abort(Self self, const std::vector<RequestId>& ids) {
  FrontendState& frontend = state(self);
  if (!frontend.journal) return send(self, frontend.router, AbortRequests{ids});
  RequestJournal::Aborted aborted = frontend.journal->requests.abort(ids);
  // Ids unknown to the journal are those of questions, which only the RequestRouter has.
  if (frontend.router) send(self, frontend.router, AbortRequests{ids});
  frontend.deliver(std::move(aborted.ended));
}

void open_port(Self self) {
  FrontendState& frontend = state(self);
  if (!frontend.listening.pending() || !frontend.port->has_keys()) return;
  // Clients may name the adapters of the options from the first request on.
  if (frontend.config.service.enable_lora && !frontend.port->adapters()) return;
  frontend.port->connect(self);
  auto server = Server::start(frontend.config, *frontend.port, *frontend.metrics);
  if (!server.ok()) {
    frontend.listening.deliver(Listening{.error = server.error()});
    return;
  }
  frontend.server = std::move(server).value();
  log_stats_later(self);
  frontend.listening.deliver(Listening{.port = frontend.server->port()});
}

void on_router_connected(Self self, const FrontendConnected& connected) {
  FrontendState& frontend = state(self);
  frontend.port->set_healthy(connected.healthy);
  if (connected.adapters) frontend.port->set_adapters(*connected.adapters);
  frontend.port->set_keys({connected.keys_seed, connected.key_stream});
  if (frontend.journal) {
    frontend.journal->requests.group_ready(kRouter);
    submit_waiting(self);
  }
  open_port(self);
}

void connect_router(Self self, const RequestRouterActor& router) {
  FrontendState& frontend = state(self);
  frontend.router = router;
  self->monitor(router);
  std::optional<AdapterList> adapters;
  if (const auto known = frontend.port->adapters()) adapters = *known;
  ask(self, router, kControlDeadline, ConnectFrontend{std::move(adapters)})
      .then(
          [self, router](const FrontendConnected& connected) {
            if (state(self).router == router) on_router_connected(self, connected);
          },
          [self](const caf::error& error) {
            // The Supervisor and this actor detect its end.
            log_warning("the request router took no connection",
                        kv("error", to_text(error, self->system())));
          });
}

/// Its requests continue in the next one.
void lose_router(Self self, const std::string& why) {
  FrontendState& frontend = state(self);
  const caf::error reason = exit_reason_of("the request router is gone: " + why);
  if (!frontend.journal) return self->quit(reason);
  frontend.router = nullptr;
  frontend.port->set_healthy(false);
  for (auto& [number, fail] : std::exchange(frontend.questions, {})) fail(reason);
  auto lost = frontend.journal->requests.group_lost(kRouter, LossCause::kOutside, true);
  log_warning("request router lost", kv("requests", lost.num_resubmissions));
  frontend.metrics->observe_resubmissions(lost.num_resubmissions);
  frontend.deliver(std::move(lost.ended));
  submit_waiting(self);
}

/// The server's clients have read their last answers, or the deadline has passed.
void end_drain(FrontendState& frontend) {
  if (frontend.drained.pending()) frontend.drained.deliver(Drained{frontend.num_aborted});
}

/// Aborts the requests that still run.
void abort_rest(Self self) {
  FrontendState& frontend = state(self);
  const FrontendActor me = self;
  const auto end_soon = [self, me] {
    send_after(self, kLastAnswers, me, DrainProgress{DrainEvent::kIdle});
  };
  if (!frontend.router) return end_soon();
  ask(self, frontend.router, kControlDeadline, Drain{})
      .then(
          [self, end_soon](const Drained& drained) {
            state(self).num_aborted = drained.num_aborted;
            end_soon();
          },
          [end_soon](const caf::error&) { end_soon(); });
}

FrontendActor::behavior_type frontend_behavior(Self self, const ServerConfig& config,
                                               const RequestRouterActor& router) {
  FrontendState& frontend = state(self);
  frontend.config = config;
  const auto num_groups = static_cast<std::uint32_t>(config.service.defaults.data_parallel_size);
  frontend.metrics = std::make_unique<EngineMetrics>(
      config.service.model_names.front(), config.service.defaults.max_model_len, num_groups);
  for (std::uint32_t group = 0; group < num_groups; ++group)
    frontend.metrics->set_cache_config(group, config.cache_config);
  frontend.metrics->set_max_adapters(config.max_adapters);
  frontend.logged.resize(frontend.metrics->num_engines());
  frontend.port = std::make_unique<FrontendPort>(self->system());
  if (router.node() != self->node()) frontend.journal = std::make_unique<OwnJournal>();
  self->set_down_handler([self](const caf::down_msg& down) {
    if (state(self).router && state(self).router.address() == down.source)
      lose_router(self, to_text(down.reason, self->system()));
  });
  connect_router(self, router);
  return {
      [self](const Listen&) -> caf::result<Listening> {
        // Another Supervisor asks for the port.
        if (const auto& server = state(self).server) return Listening{.port = server->port()};
        state(self).listening = self->make_response_promise<Listening>();
        auto promise = state(self).listening;
        open_port(self);
        return promise;
      },
      [self](SubmitRequest& submission) {
        FrontendState& frontend = state(self);
        if (!frontend.journal) return send(self, frontend.router, std::move(submission));
        const RequestId id = submission.request.id;
        const auto added = frontend.journal->requests.add(std::move(submission));
        if (!added.ok()) return refuse(frontend, id, added.error());
        submit_waiting(self);
      },
      [self](const AbortRequests& abort) { frontend::abort(self, abort.ids); },
      [self](const RenderRequest& what) { return ask_router(self, what); },
      [self](const ResetCaches& what) { return ask_router(self, what); },
      [self](const MoveCache& what) { return ask_router(self, what); },
      [self](const PauseScheduler& what) { return ask_router(self, what); },
      [self](const ResumeScheduler& what) { return ask_router(self, what); },
      [self](const AskPaused& what) { return ask_router(self, what); },
      [self](const DrainGroup& what) { return ask_router(self, what); },
      [self](const AskTopology& what) { return ask_router(self, what); },
      [self](const LoadAdapter& what) { return ask_router(self, what); },
      [self](const UnloadAdapter& what) { return ask_router(self, what); },
      [self](const CollectiveRpc& what) { return ask_router(self, what); },
      [self](RequestOutputs& outputs) {
        FrontendState& frontend = state(self);
        if (frontend.journal) {
          for (const auto& failed : frontend.journal->requests.record(outputs)) {
            refuse(frontend, failed.id, failed.error);
            abort(self, {failed.id});
          }
        }
        // Null before Listen, and where Listen failed.
        if (frontend.server) frontend.server->deliver(std::move(outputs));
      },
      [self](const RouterReport& news) {
        FrontendState& frontend = state(self);
        frontend.port->set_healthy(news.healthy);
        if (news.adapters) {
          frontend.port->set_adapters(*news.adapters);
          open_port(self);
        }
        if (news.lost_group) frontend.metrics->observe_loss(*news.lost_group);
        frontend.metrics->observe_resubmissions(news.num_resubmitted);
      },
      [self](const RouterReady&, const ActorHandles& handles) {
        const auto router = caf::actor_cast<RequestRouterActor>(handles.at(0));
        if (router == state(self).router) return;
        if (state(self).router) lose_router(self, "another one has taken its place");
        connect_router(self, router);
      },
      [self](const Drain& drain) -> caf::result<Drained> {
        FrontendState& frontend = state(self);
        frontend.drained = self->make_response_promise<Drained>();
        const FrontendActor me = self;
        auto on_idle = [me] { post(me, DrainProgress{DrainEvent::kIdle}); };
        if (!frontend.server) {
          on_idle();
        } else if (drain.retire) {
          frontend.server->retire(std::move(on_idle));
        } else {
          frontend.server->drain(std::move(on_idle));
        }
        if (drain.retire) return frontend.drained;
        const auto timeout = from_seconds(drain.timeout_s);
        if (timeout > 0ns) {
          send_after(self, timeout, me, DrainProgress{DrainEvent::kTimeout});
        } else {
          abort_rest(self);
        }
        return frontend.drained;
      },
      [self](const DrainProgress& progress) {
        if (!state(self).drained.pending()) return;
        if (progress.event == DrainEvent::kTimeout) {
          abort_rest(self);
        } else {
          end_drain(state(self));
        }
      },
      [self](const WakeUp&) {
        FrontendState& frontend = state(self);
        frontend.journal->wake_at = std::numeric_limits<double>::infinity();
        frontend.deliver(frontend.journal->requests.expire(wall_seconds()));
        submit_waiting(self);
      },
      [self](const LogStats&) {
        log_stats(state(self));
        log_stats_later(self);
      },
  };
}

}  // namespace
}  // namespace frontend

FrontendActor spawn_frontend(caf::actor_system& system, const ServerConfig& config,
                             const RequestRouterActor& router) {
  return system.spawn(frontend::frontend_behavior, config, router);
}

}  // namespace troupe
