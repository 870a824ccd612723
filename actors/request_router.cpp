// The RequestRouter: journals the requests of all clients until they finish, distributes them over
// the engine's groups, and resubmits them to another one when a group is lost.
#include <algorithm>
#include <chrono>

#include "actors/deadlines.hpp"
#include "actors/router_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"

namespace troupe {
namespace router {
namespace {

using namespace std::chrono_literals;

/// For the engine to finish aborted requests: one that is stuck must not delay the shutdown.
constexpr auto kAbortDeadline = 2s;

/// Starts a timer for the earliest deadline of the waiting requests.
void watch_deadlines(Self self) {
  RouterState& router = state(self);
  const double next = router.journal->next_deadline();
  if (next >= router.wake_at) return;
  router.wake_at = next;
  const RequestRouterActor me = self;
  send_after(self, from_seconds(std::max(next - wall_seconds(), 0.0)), me, WakeUp{});
}

void refuse(Self self, RequestId id, const Error& error) {
  RequestOutputs refusal;
  refusal.outputs.push_back({.id = id, .finished = true, .error = error});
  hand_out(self, std::move(refusal));
}

/// Aborts travel through the actors that the request took, so that they cannot overtake it.
void finish_abort(Self self, RequestJournal::Aborted aborted) {
  RouterState& router = state(self);
  for (auto& [group, samples] : aborted.to_engine) {
    const std::uint64_t id = value(samples.ids.front());
    send(self, router.groups[group]->input_processor(id), std::move(samples));
  }
  hand_out(self, std::move(aborted.ended));
  answer_drains(self);
}

void abort_all(Self self) {
  RouterState& router = state(self);
  router.num_aborted = static_cast<std::int32_t>(router.journal->num_live());
  end_renders(self, {ErrorCode::kOverloaded, "the server is shutting down", ""});
  finish_abort(self, router.journal->abort_all());
  if (router.drained.empty()) return;
  const RequestRouterActor me = self;
  send_after(self, kAbortDeadline, me, DrainProgress{DrainEvent::kIdle});
}

/// Calls f(), which works for these requests. An exception fails them, and nothing else.
template <class Function>
void fail_alone(Self self, const std::vector<RequestId>& ids, Function&& f) {
  const std::optional<Error> error = guard(std::forward<Function>(f));
  if (!error) return;
  log_warning("request failed in the request router", kv("requests", ids.size()),
              kv("error", error->message));
  for (const RequestId id : ids) refuse(self, id, *error);
  finish_abort(self, state(self).journal->abort(ids));
}

/// Fails all requests, and those that arrive later.
void fail_live(Self self, const std::string& reason) {
  const Error error{ErrorCode::kUnavailable, "the engine stopped: " + reason};
  state(self).failure = error;
  hand_out(self, state(self).journal->fail_all(error));
  end_renders(self, error);
  answer_drains(self);
}

/// Aborts the requests of a client that has ended.
void lose_client(Self self, const caf::down_msg& down) {
  RouterState& router = state(self);
  const auto known = router.client_numbers.extract(down.source);
  if (known.empty()) return;
  const RequestClients::Client number = known.mapped();
  const std::vector<RequestId> ids = router.book.remove_client(number);
  router.clients.erase(number);
  if (ids.empty()) return;
  log_warning("a client has ended", kv("requests", ids.size()),
              kv("reason", to_text(down.reason, self->system())));
  for (const RequestId id : ids)
    end_render(self, id, {ErrorCode::kAborted, "the client has disconnected", ""});
  finish_abort(self, router.journal->abort(ids));
  submit_waiting(self);
}

void take_request(Self self, SubmitRequest& submission) {
  RouterState& router = state(self);
  GenerateRequest& request = submission.request;
  const auto client = sender_of(self);
  if (!client) {
    log_warning("a request without a sender is dropped", kv("id", value(request.id)));
    return;
  }
  const RequestId own_id = request.id;
  const auto id = router.book.add(*client, own_id, request.params.n,
                                  request.params.output_kind == OutputKind::kFinalOnly);
  if (!id.ok()) {
    RequestOutputs refusal;
    refusal.outputs.push_back({.id = own_id, .finished = true, .error = id.error()});
    return send(self, router.clients.at(*client).actor, std::move(refusal));
  }
  request.id = *id;
  if (request.lora && request.lora->int_id == 0) {
    const LoraRequest* const adapter = router.adapters.find(request.lora->name);
    if (adapter == nullptr) return refuse(self, *id, unknown_adapter(request.lora->name));
    request.lora = *adapter;
  }
  if (router.failure) return refuse(self, *id, *router.failure);
  if (router.refuses)
    return refuse(self, *id, {ErrorCode::kOverloaded, "the server is shutting down", ""});
  // Drawn here, the key outlives the engine: the next one continues the request with it.
  SamplingParams& params = request.params;
  if (params.philox_key == 0) params.philox_key = router.keys->draw();
  if (request.arrival_time == 0) request.arrival_time = wall_seconds();
  if (request.external_id.empty()) request.external_id = to_string(own_id);
  fail_alone(self, {*id}, [&] {
    const auto added = router.journal->add(std::move(submission));
    if (!added.ok()) return refuse(self, *id, added.error());
    submit_waiting(self);
  });
}

/// The number of a stream of keys that no other client has, nor one of an earlier life.
std::uint64_t key_stream(const RouterState& router, RequestClients::Client client) {
  return router.life << 32 | client;
}

RequestRouterActor::behavior_type router_behavior(Self self, const RouterConfig& config) {
  RouterState& router = state(self);
  router.seed = config.seed;
  router.life = config.life;
  router.enable_adapters = config.enable_adapters;
  // Ids are unique over all lives of this actor: an engine may still report on a request of an
  // earlier life.
  router.book = RequestClients(random_bits() >> 32 << 32);
  router.keys.emplace(KeyStream{config.seed, key_stream(router, 0)});
  router.groups.resize(config.roles.size());
  router.lost_engines.resize(config.roles.size());
  router.journal =
      std::make_unique<RequestJournal>(config.roles.size(), RequestId{random_bits() >> 32 << 32});
  router.coordinator = std::make_unique<Coordinator>(config.roles, config.min_split_tokens);
  self->set_down_handler([self](const caf::down_msg& down) { lose_client(self, down); });
  return {
      [self](const ConnectFrontend& connect) {
        RouterState& router = state(self);
        if (connect.adapters) router.adapters.restore(connect.adapters->adapters);
        const auto client = sender_of(self);
        if (!client) return FrontendConnected{};
        ClientLink& link = router.clients.at(*client);
        link.frontend = caf::actor_cast<FrontendActor>(self->current_sender());
        return FrontendConnected{.keys_seed = router.seed,
                                 .key_stream = key_stream(router, *client),
                                 .healthy = router.healthy,
                                 .adapters = router.adapters.known()};
      },
      [self](SubmitRequest& submission) { take_request(self, submission); },
      [self](const AbortRequests& abort) {
        RouterState& router = state(self);
        const auto client = sender_of(self);
        std::vector<RequestId> ids;
        for (const RequestId own_id : abort.ids) {
          if (const auto id = client ? router.book.find(*client, own_id) : std::nullopt)
            ids.push_back(*id);
        }
        for (const RequestId id : ids)
          end_render(self, id, {ErrorCode::kAborted, "the client has disconnected", ""});
        finish_abort(self, router.journal->abort(ids));
        submit_waiting(self);
      },
      [self](RenderRequest& request) { return take_render(self, request); },
      [self](const ResetCaches& what) { return reset_caches(self, what); },
      [self](const MoveCache& what) { return move_cache(self, what); },
      [self](const PauseScheduler& what) { return pause(self, what); },
      [self](const ResumeScheduler& what) { return resume(self, what); },
      [self](const AskPaused& what) { return ask_paused(self, what); },
      [self](const LoadAdapter& what) { return load_adapter(self, what); },
      [self](const UnloadAdapter& what) { return unload_adapter(self, what); },
      [self](const CollectiveRpc& what) { return call_workers(self, what); },
      [self](RequestOutputs& outputs) {
        RouterState& router = state(self);
        const auto group = router.group_of(self->current_sender());
        if (!group) return;
        outputs.stats.engine_index = static_cast<std::uint32_t>(*group);
        if (const auto& load = outputs.stats.scheduler) router.coordinator->observe(*group, *load);
        for (const RequestJournal::Failure& failed : router.journal->record(outputs)) {
          refuse(self, failed.id, failed.error);
          finish_abort(self, router.journal->abort({&failed.id, 1}));
        }
        hand_out(self, std::move(outputs));
        if (router.journal->has_waiting()) submit_waiting(self);
        if (!router.draining.empty()) end_idle_groups(self);
        answer_drains(self);
      },
      [self](const EngineLost& lost) {
        lose_engine(self, lost);
        end_idle_groups(self);
      },
      [self](const EngineReady& ready, std::vector<InputProcessorActor>& input_processors,
             const OutputProcessorActor& output_processor, const SchedulerActor& scheduler) {
        take_engine(self, ready,
                    {.input_processors = std::move(input_processors),
                     .output_processor = output_processor,
                     .scheduler = scheduler});
      },
      [self](const DrainGroup& what) { return drain_group(self, what); },
      [self](const GroupDrainTimeout& timeout) {
        const auto drain = state(self).draining.find(timeout.group);
        if (drain != state(self).draining.end() && drain->second.number == timeout.drain)
          end_drained_group(self, timeout.group);
      },
      [self](const AskTopology& what) -> caf::result<TopologyStatus> {
        // Not delegated: the sender may be in another process, where this one cannot ask in its
        // name.
        auto promise = self->make_response_promise<TopologyStatus>();
        if (!state(self).supervisor) promise.deliver(exit_reason_of("no group has been ready"));
        if (!promise.pending()) return promise;
        ask(self, state(self).supervisor, kControlDeadline, what)
            .then([promise](TopologyStatus& status) mutable { promise.deliver(std::move(status)); },
                  [promise](const caf::error& error) mutable { promise.deliver(error); });
        return promise;
      },
      [self](const EngineHealth& health) {
        report(self, {.healthy = health.healthy});
        state(self).failure.reset();
        if (!health.healthy) fail_live(self, health.reason);
      },
      [self](const Drain& drain) -> caf::result<Drained> {
        RouterState& router = state(self);
        router.refuses = true;
        auto promise = self->make_response_promise<Drained>();
        router.drained.push_back(promise);
        const auto timeout = from_seconds(drain.timeout_s);
        const RequestRouterActor me = self;
        if (timeout > 0ns) {
          send_after(self, timeout, me, DrainProgress{DrainEvent::kTimeout});
          answer_drains(self);
        } else {
          abort_all(self);
        }
        return promise;
      },
      [self](const DrainProgress& progress) {
        RouterState& router = state(self);
        if (router.drained.empty()) return;
        if (progress.event == DrainEvent::kTimeout) return abort_all(self);
        for (auto& promise : std::exchange(router.drained, {}))
          promise.deliver(Drained{router.num_aborted});
      },
      [self](const WakeUp&) {
        RouterState& router = state(self);
        router.wake_at = std::numeric_limits<double>::infinity();
        hand_out(self, router.journal->expire(wall_seconds()));
        answer_drains(self);
        submit_waiting(self);
      },
  };
}

}  // namespace

void hand_out(Self self, RequestOutputs outputs) {
  RouterState& router = state(self);
  auto shares = router.book.share_out(std::move(outputs.outputs));
  for (auto& [number, client] : router.clients) {
    const auto share = std::find_if(shares.begin(), shares.end(), [who = number](const auto& each) {
      return each.client == who;
    });
    const bool wants_stats = client.frontend && outputs.stats.scheduler;
    if (share == shares.end() && !wants_stats) continue;
    RequestOutputs own;
    if (share != shares.end()) own.outputs = std::move(share->outputs);
    if (router.clients.size() == 1) {
      own.stats = std::move(outputs.stats);
    } else {
      own.stats = outputs.stats;
    }
    send(self, client.actor, std::move(own));
  }
}

void answer_drains(Self self) {
  RouterState& router = state(self);
  if (router.drained.empty() || router.journal->num_live() > 0) return;
  for (auto& promise : std::exchange(router.drained, {}))
    promise.deliver(Drained{router.num_aborted});
}

void report(Self self, const RouterReport& news) {
  state(self).healthy = news.healthy;
  for (const auto& [number, client] : state(self).clients) {
    if (client.frontend) send(self, client.frontend, news);
  }
}

void submit_waiting(Self self) {
  RouterState& router = state(self);
  std::size_t num_again = 0;
  const double now = wall_seconds();
  for (auto& [group, request, again, error, placement] :
       router.journal->take_submissions(*router.coordinator)) {
    if (error) {
      refuse(self, request.id, *error);
      continue;
    }
    num_again += again;
    request.age_s = std::max(now - request.arrival_time, 0.0);
    send(self, router.groups[group]->input_processor(value(request.id)),
         SubmitRequest{std::move(request), std::move(placement)});
  }
  if (num_again > 0) report(self, {.healthy = router.healthy, .num_resubmitted = num_again});
  watch_deadlines(self);
}

std::optional<RequestClients::Client> sender_of(Self self) {
  RouterState& router = state(self);
  const caf::strong_actor_ptr& sender = self->current_sender();
  if (!sender) return std::nullopt;
  const auto address = caf::actor_cast<caf::actor_addr>(sender);
  const auto known = router.client_numbers.find(address);
  if (known != router.client_numbers.end()) return known->second;
  const RequestClients::Client number = router.book.add_client();
  router.client_numbers.emplace(address, number);
  router.clients.emplace(number, ClientLink{caf::actor_cast<RequestClientActor>(sender), {}});
  self->monitor(caf::actor_cast<caf::actor>(sender));
  return number;
}

}  // namespace router

RequestRouterActor spawn_request_router(caf::actor_system& system, const RouterConfig& config) {
  const RequestRouterActor router = system.spawn(router::router_behavior, config);
  if (!config.adapter_directory.empty())
    static_cast<void>(spawn_adapter_directory(system, config.adapter_directory, router));
  return router;
}

}  // namespace troupe
