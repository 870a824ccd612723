// The RequestRouter: keeps the requests of all clients until they have ended, shares them out to
// the groups of the engine, and gives them to another one when a group is lost.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "actors/deadlines.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/processors/adapter_registry.hpp"
#include "runtime/processors/request_clients.hpp"
#include "runtime/processors/request_journal.hpp"
#include "runtime/processors/request_keys.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kSubscribeDeadline = 60s;
/// For the engine to end what was aborted; one that is stuck would hold up the shutdown.
constexpr auto kAbortDeadline = 2s;
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

/// An actor that has submitted requests.
struct ClientLink {
  RequestClientActor actor;
  FrontendActor frontend;  ///< null: it is none, and is told of nothing but its requests
};

/// Owns the journal of the requests that clients wait for, and the links to clients and groups.
struct RouterState {
  RouterState() = default;
  static inline const char* name = "request_router";

  std::uint64_t seed = 0;
  std::uint64_t life = 0;
  RequestClients book;
  std::map<RequestClients::Client, ClientLink> clients;
  std::map<caf::actor_addr, RequestClients::Client> client_numbers;
  std::optional<RequestKeys> keys;                ///< for clients that draw none themselves
  bool healthy = true;                            ///< as the last RouterReport said
  SupervisorActor supervisor;                     ///< who says EngineReady
  std::vector<std::optional<EngineLink>> groups;  ///< none: lost, or not there yet
  /// The OutputProcessor of the engine that each group has lost last. Compared only: it may be
  /// gone.
  std::vector<caf::actor_addr> lost_engines;
  std::optional<Error> failure;     ///< there will be no other engine
  std::optional<PauseMode> paused;  ///< by whoever; holds for the engines to come
  std::unique_ptr<RequestJournal> journal;
  std::unique_ptr<Coordinator> coordinator;
  std::map<std::uint32_t, GroupDrain> draining;  ///< by group
  std::uint64_t num_drains = 0;
  double wake_at = std::numeric_limits<double>::infinity();  ///< when WakeUp arrives
  std::map<RequestId, PendingRender> renders;
  bool enable_adapters = false;
  AdapterRegistry adapters;
  bool refuses = false;  ///< new requests, as the system shuts down
  std::int32_t num_aborted = 0;
  std::vector<caf::typed_response_promise<Drained>> drained;

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

using Self = RequestRouterActor::stateful_pointer<RouterState>;

/// The earliest deadline of those that wait here has a timer.
void watch_deadlines(Self self) {
  RouterState& router = state(self);
  const double next = router.journal->next_deadline();
  if (next >= router.wake_at) return;
  router.wake_at = next;
  const RequestRouterActor me = self;
  send_after(self, from_seconds(std::max(next - wall_seconds(), 0.0)), me, WakeUp{});
}

/// To whom it concerns. What a step has brought also goes to every Frontend, for its statistics.
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

/// When nothing is left to be waited for, who drains hears so.
void answer_drains(Self self) {
  RouterState& router = state(self);
  if (router.drained.empty() || router.journal->num_live() > 0) return;
  for (auto& promise : std::exchange(router.drained, {}))
    promise.deliver(Drained{router.num_aborted});
}

void refuse(Self self, RequestId id, const Error& error) {
  RequestOutputs refusal;
  refusal.outputs.push_back({.id = id, .finished = true, .error = error});
  hand_out(self, std::move(refusal));
}

void report(Self self, const RouterReport& news) {
  state(self).healthy = news.healthy;
  for (const auto& [number, client] : state(self).clients) {
    if (client.frontend) send(self, client.frontend, news);
  }
}

/// Gives the groups what waits for them, as far as it may be given.
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

/// Tells everyone behind, through the actor that had the request before: an abort never overtakes
/// it.
void finish_abort(Self self, RequestJournal::Aborted aborted) {
  RouterState& router = state(self);
  for (auto& [group, samples] : aborted.to_engine) {
    const std::uint64_t id = value(samples.ids.front());
    send(self, router.groups[group]->input_processor(id), std::move(samples));
  }
  hand_out(self, std::move(aborted.ended));
  answer_drains(self);
}

void try_render(Self self, RequestId id) {
  RouterState& router = state(self);
  PendingRender& render = router.renders.at(id);
  ++render.num_tries;
  render.group = router.any_group(value(id));
  ask(self, router.groups[*render.group]->input_processor(value(id)), render.request)
      .then(
          [self, id](RenderReply& reply) {
            auto pending = state(self).renders.extract(id);
            if (pending.empty()) return;
            state(self).book.remove(id);
            pending.mapped().promise.deliver(std::move(reply));
          },
          [](const caf::error&) {});  // another group will be asked
}

/// Whoever waits hears why; whoever is at it stops.
void end_render(Self self, RequestId id, const Error& error) {
  RouterState& router = state(self);
  auto ended = router.renders.extract(id);
  if (ended.empty()) return;
  router.book.remove(id);
  PendingRender& render = ended.mapped();
  if (render.group && router.groups[*render.group]) {
    send(self, router.groups[*render.group]->input_processor(value(id)), AbortRequests{{id}});
  }
  render.promise.deliver(RenderReply{.error = error});
}

void end_renders(Self self, const Error& error) {
  while (!state(self).renders.empty()) end_render(self, state(self).renders.begin()->first, error);
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

/// Calls f(), whose work is for these requests. What it throws ends them, and nothing else.
template <class Function>
void fail_alone(Self self, const std::vector<RequestId>& ids, Function&& f) {
  const std::optional<Error> error = guard(std::forward<Function>(f));
  if (!error) return;
  log_warning("request failed in the request router", kv("requests", ids.size()),
              kv("error", error->message));
  for (const RequestId id : ids) refuse(self, id, *error);
  finish_abort(self, state(self).journal->abort(ids));
}

/// Whoever waits hears so, and whoever comes.
void fail_live(Self self, const std::string& reason) {
  const Error error{ErrorCode::kUnavailable, "the engine stopped: " + reason};
  state(self).failure = error;
  hand_out(self, state(self).journal->fail_all(error));
  end_renders(self, error);
  answer_drains(self);
}

/// Asks for those that wait, if there is a group to be asked.
void try_waiting_renders(Self self) {
  RouterState& router = state(self);
  if (!router.has_ready_group()) return;
  for (auto next = router.renders.begin(); next != router.renders.end();) {
    const auto current = next++;
    if (current->second.group) continue;
    if (current->second.num_tries < kMaxRenderTries) {
      try_render(self, current->first);
      continue;
    }
    auto ended = router.renders.extract(current);
    router.book.remove(ended.key());
    ended.mapped().promise.deliver(
        RenderReply{.error = Error{ErrorCode::kInternal,
                                   "the engine was lost " + std::to_string(kMaxRenderTries) +
                                       " times before it answered this request"}});
  }
}

/// What the group had goes on in another one, or waits for the next.
void lose_engine(Self self, const EngineLost& lost) {
  RouterState& router = state(self);
  if (const auto& link = router.groups[lost.group])
    router.lost_engines[lost.group] = link->output_processor.address();
  router.groups[lost.group].reset();
  router.coordinator->forget(lost.group);
  report(self, {.healthy = router.has_ready_group(), .lost_group = lost.group});
  RequestJournal::Lost taken_back =
      router.journal->group_lost(lost.group, lost.cause, lost.returns);
  log_warning("engine lost", kv("group", lost.group), kv("reason", lost.reason),
              kv("crashed", lost.cause == LossCause::kCrashed), kv("returns", lost.returns),
              kv("requests", taken_back.num_resubmissions),
              kv("ended", taken_back.ended.outputs.size()),
              kv("quarantine", router.journal->in_quarantine()));
  hand_out(self, std::move(taken_back.ended));
  answer_drains(self);
  submit_waiting(self);
  for (auto& [id, render] : router.renders) {
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

/// The Frontends know which adapters requests may name.
void report_adapters(Self self) {
  report(self, {.healthy = state(self).healthy, .adapters = state(self).adapters.list()});
}

/// Asks the Schedulers of `groups`; done gets the error of one of them, else what the first says.
template <class Question>
void ask_adapters(Self self, const std::vector<SchedulerActor>& schedulers,
                  const Question& question, std::function<void(AdapterReply)> done) {
  struct Pending {
    std::size_t num_missing = 0;
    AdapterReply joined;
    std::function<void(AdapterReply)> done;
  };
  const auto pending = std::make_shared<Pending>(Pending{schedulers.size(), {}, std::move(done)});
  const auto add = [pending](AdapterReply reply) {
    AdapterReply& joined = pending->joined;
    if (!joined.error) joined.error = std::move(reply.error);
    if (joined.adapters.empty()) joined.adapters = std::move(reply.adapters);
    if (--pending->num_missing == 0) pending->done(std::move(joined));
  };
  for (const SchedulerActor& scheduler : schedulers) {
    ask(self, scheduler, kPauseDeadline, question)
        .then([add](AdapterReply& reply) { add(std::move(reply)); },
              [self, add](const caf::error& error) {
                add({.adapters = {},
                     .error = Error{ErrorCode::kUnavailable,
                                    "a group was lost: " + to_text(error, self->system())}});
              });
  }
}

std::vector<SchedulerActor> schedulers_of(const RouterState& router) {
  std::vector<SchedulerActor> schedulers;
  for (const std::optional<EngineLink>& link : router.groups)
    if (link && link->ready) schedulers.push_back(link->scheduler);
  return schedulers;
}

/// A new engine has the adapters that its options name; it gets the others, and tells those that
/// are not known here yet.
void match_adapters(Self self, const SchedulerActor& scheduler) {
  ask_adapters(self, {scheduler}, ListAdapters{}, [self, scheduler](const AdapterReply& reply) {
    if (reply.error)
      return log_warning("the adapters of a group are not known",
                         kv("error", reply.error->message));
    const AdapterRegistry::Difference difference = state(self).adapters.match(reply.adapters);
    for (const LoraRequest& missing : difference.to_load) {
      ask_adapters(self, {scheduler}, LoadAdapter{.name = missing.name, .path = missing.path},
                   [missing](const AdapterReply& loaded) {
                     if (loaded.error)
                       log_warning("an adapter is not loaded again", kv("adapter", missing.name),
                                   kv("error", loaded.error->message));
                   });
    }
    for (const std::string& name : difference.to_unload)
      ask_adapters(self, {scheduler}, UnloadAdapter{name}, [](const AdapterReply&) {});
    report_adapters(self);
  });
}

caf::result<AdapterReply> load_adapter(Self self, const LoadAdapter& what) {
  RouterState& router = state(self);
  if (auto refusal = router.adapters.check_load(what))
    return AdapterReply{.adapters = {}, .error = std::move(refusal)};
  const std::vector<SchedulerActor> schedulers = schedulers_of(router);
  if (!router.enable_adapters || schedulers.empty())
    return AdapterReply{
        .adapters = {},
        .error = router.enable_adapters
                     ? Error{ErrorCode::kUnavailable, "the engine is not ready"}
                     : Error{ErrorCode::kUnsupported, "adapters are not enabled, see enable-lora"}};
  auto promise = self->make_response_promise<AdapterReply>();
  ask_adapters(self, schedulers, what, [self, promise, what](AdapterReply reply) mutable {
    RouterState& now = state(self);
    if (!reply.error && reply.adapters.size() == 1) {
      reply.adapters = {now.adapters.add(std::move(reply.adapters.front()))};
      report_adapters(self);
    } else if (!now.adapters.find(what.name)) {
      // Some group may have it.
      ask_adapters(self, schedulers_of(now), UnloadAdapter{what.name}, [](const AdapterReply&) {});
    }
    promise.deliver(std::move(reply));
  });
  return promise;
}

caf::result<AdapterReply> unload_adapter(Self self, const UnloadAdapter& what) {
  RouterState& router = state(self);
  if (!router.adapters.remove(what.name))
    return AdapterReply{.adapters = {}, .error = unknown_adapter(what.name)};
  report_adapters(self);
  ask_adapters(self, schedulers_of(router), what, [](const AdapterReply&) {});
  return AdapterReply{};
}

/// The group's outputs come here from now on: it gets what there is to do.
void on_subscribed(Self self, std::size_t group) {
  RouterState& router = state(self);
  router.groups[group]->ready = true;
  if (router.paused) pause_again(self, *router.groups[group]);
  if (router.enable_adapters) match_adapters(self, router.groups[group]->scheduler);
  report(self, {.healthy = true});
  router.journal->group_ready(group);
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
  std::vector<InputProcessorActor> input_processors;
  for (const std::optional<EngineLink>& link : state(self).groups) {
    if (!link) continue;
    schedulers.push_back(link->scheduler);
    if constexpr (std::is_same_v<Question, ResetCaches>)
      if (question.mm_cache)
        input_processors.insert(input_processors.end(), link->input_processors.begin(),
                                link->input_processors.end());
  }
  if (schedulers.empty()) promise.deliver(exit_reason_of("no group is ready"));
  pending->num_missing = schedulers.size() + input_processors.size();
  auto finish = [pending, promise, join]() mutable {
    if (--pending->num_missing > 0) return;
    if (pending->answers.empty()) {
      promise.deliver(exit_reason_of("all groups were lost"));
    } else {
      promise.deliver(join(pending->answers));
    }
  };
  const auto ask_one = [&](const auto& actor) {
    ask(self, actor, kPauseDeadline, question)
        .then(
            [pending, finish](const Answer& answer) mutable {
              pending->answers.push_back(answer);
              finish();
            },
            [finish](const caf::error&) mutable { finish(); });
  };
  std::ranges::for_each(schedulers, ask_one);
  if constexpr (std::is_same_v<Question, ResetCaches>)
    std::ranges::for_each(input_processors, ask_one);
  return promise;
}

CachesReset join_resets(const std::vector<CachesReset>& resets) {
  return {std::all_of(resets.begin(), resets.end(), [](const auto& reset) { return reset.ok; })};
}

CacheMoved join_moves(const std::vector<CacheMoved>& moves) {
  CacheMoved all;
  for (const CacheMoved& moved : moves) {
    all.num_blocks += moved.num_blocks;
    if (!all.error) all.error = moved.error;
  }
  return all;
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
  RouterState& router = state(self);
  auto promise = std::move(router.draining.extract(group).mapped().promise);
  log_info("group drained", kv("group", group), kv("moved", router.journal->num_in(group)));
  ask(self, router.supervisor, kControlDeadline, EndGroup{group})
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
std::optional<Error> refuse_drain(const RouterState& router, std::uint32_t group) {
  const std::string name = "group " + std::to_string(group);
  if (group >= router.groups.size()) {
    return invalid_argument(
        name + ": the groups are 0 to " + std::to_string(router.groups.size() - 1), "group");
  }
  if (router.draining.contains(group)) return invalid_argument(name + " drains already", "group");
  for (std::size_t other = 0; other < router.groups.size(); ++other) {
    const std::optional<EngineLink>& link = router.groups[other];
    const bool drains = router.draining.contains(static_cast<std::uint32_t>(other));
    if (other != group && link && link->ready && !drains) return std::nullopt;
  }
  return invalid_argument("no other group than " + std::to_string(group) + " takes requests",
                          "group");
}

/// Who has sent this message, as a client; none: nobody to be answered.
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

/// Nobody waits for its requests any more.
void lose_client(Self self, const caf::down_msg& down) {
  RouterState& router = state(self);
  const auto known = router.client_numbers.extract(down.source);
  if (known.empty()) return;
  const RequestClients::Client number = known.mapped();
  const std::vector<RequestId> ids = router.book.remove_client(number);
  router.clients.erase(number);
  if (ids.empty()) return;
  log_warning("a client has left", kv("requests", ids.size()),
              kv("reason", to_text(down.reason, self->system())));
  for (const RequestId id : ids)
    end_render(self, id, {ErrorCode::kAborted, "the client has left", ""});
  finish_abort(self, router.journal->abort(ids));
  submit_waiting(self);
}

void take_request(Self self, SubmitRequest& submission) {
  RouterState& router = state(self);
  GenerateRequest& request = submission.request;
  const auto client = sender_of(self);
  if (!client) {
    log_warning("a request that came from nobody is dropped", kv("id", value(request.id)));
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
  // Drawn here, a key outlives the engine: whoever goes on with the request has it too.
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

caf::result<RenderReply> take_render(Self self, RenderRequest& request) {
  RouterState& router = state(self);
  if (router.failure) return RenderReply{.error = router.failure};
  if (router.renders.size() >= kMaxRenders) {
    return RenderReply{
        .error = Error{ErrorCode::kOverloaded, std::to_string(kMaxRenders) +
                                                   " requests wait for an input processor, as many "
                                                   "as may"}};
  }
  const auto client = sender_of(self);
  if (value(request.id) == 0 || !client) {
    request.id = router.book.allocate(1);
  } else {
    const auto id = router.book.add(*client, request.id, 1, false);
    if (!id.ok()) return RenderReply{.error = id.error()};
    request.id = *id;
  }
  const RequestId id = request.id;
  auto promise = self->make_response_promise<RenderReply>();
  auto thrown = guard([&] {
    router.renders.emplace(id, PendingRender{std::move(request), promise});
    if (router.has_ready_group()) try_render(self, id);
  });
  if (thrown) {
    router.renders.erase(id);
    router.book.remove(id);
    promise.deliver(RenderReply{.error = std::move(thrown)});
  }
  return promise;
}

/// The number of a row of keys that nobody else has, also none of an earlier life.
std::uint64_t key_stream(const RouterState& router, RequestClients::Client client) {
  return router.life << 32 | client;
}

RequestRouterActor::behavior_type router_behavior(Self self, const RouterConfig& config) {
  RouterState& router = state(self);
  router.seed = config.seed;
  router.life = config.life;
  router.enable_adapters = config.enable_adapters;
  // Ids are never given out twice, also not by the next life of this actor: what an engine still
  // says of a request of the last one is nobody's.
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
          end_render(self, id, {ErrorCode::kAborted, "the client has left", ""});
        finish_abort(self, router.journal->abort(ids));
        submit_waiting(self);
      },
      [self](RenderRequest& request) { return take_render(self, request); },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        return ask_groups<CachesReset>(self, what, join_resets);
      },
      [self](const MoveCache& what) -> caf::result<CacheMoved> {
        return ask_groups<CacheMoved>(self, what, join_moves);
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
      [self](const LoadAdapter& what) { return load_adapter(self, what); },
      [self](const UnloadAdapter& what) { return unload_adapter(self, what); },
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
        state(self).supervisor = caf::actor_cast<SupervisorActor>(self->current_sender());
        if (output_processor.address() == state(self).lost_engines[ready.group]) {
          // A Supervisor has died before it could end this engine, and the next has found it. It
          // still runs requests that others run by now, under the same ids.
          if (const auto& supervisor = state(self).supervisor)
            send(self, supervisor, EngineRefused{ready.group, ready.incarnation});
          return;
        }
        if (const auto& link = state(self).groups[ready.group]) {
          // Another Supervisor has found it running.
          if (link->output_processor == output_processor && link->scheduler == scheduler) return;
          lose_engine(self, {.group = ready.group, .reason = "another one has taken its place"});
        }
        connect_engine(self, ready.group,
                       {.input_processors = std::move(input_processors),
                        .output_processor = output_processor,
                        .scheduler = scheduler});
      },
      [self](const DrainGroup& what) -> caf::result<Status> {
        RouterState& router = state(self);
        if (auto refusal = refuse_drain(router, what.group)) return Status{*std::move(refusal)};
        auto promise = self->make_response_promise<Status>();
        const std::uint64_t number = ++router.num_drains;
        router.draining.emplace(what.group, GroupDrain{promise, number});
        router.journal->close_group(what.group);
        const RequestRouterActor me = self;
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
        // Not delegated: who asks is in another process perhaps, in whose name this one cannot ask.
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

RequestRouterActor spawn_request_router(caf::actor_system& system, const RouterConfig& config) {
  const RequestRouterActor router = system.spawn(router_behavior, config);
  if (!config.adapter_directory.empty())
    static_cast<void>(spawn_adapter_directory(system, config.adapter_directory, router));
  return router;
}

}  // namespace troupe
