// The Supervisor: brings up the groups of the engine and the Frontend in the nodes of the topology,
// watches them, starts anew what ends, stops them in reverse order.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/engine_settings.hpp"
#include "actors/exceptions.hpp"
#include "actors/spawn.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {
namespace supervision {
namespace {

using namespace std::chrono_literals;

constexpr auto kConfirmDelay = 200ms;
/// RequestRouter and Frontend that end so often in a row before they are up are given up.
constexpr int kMaxFrontLosses = 8;
/// Processes that were asked to leave are killed after so long.
constexpr double kLeaveTimeout_s = 5;

/// Of one group.
std::vector<InputProcessorActor> input_processors(const GroupSlot& group) {
  std::vector<InputProcessorActor> pool;
  for (const caf::strong_actor_ptr& handle : group.actors_of(Role::kInputProcessor))
    pool.push_back(caf::actor_cast<InputProcessorActor>(handle));
  return pool;
}

// ---- RequestRouter and Frontend
// ------------------------------------------------------------------------------

/// The first one that serves; null: none does.
const GroupSlot* find_serving(const SupervisorState& supervisor) {
  const auto found =
      std::find_if(supervisor.groups.begin(), supervisor.groups.end(),
                   [](const GroupSlot& group) { return group.state == GroupState::kServing; });
  return found == supervisor.groups.end() ? nullptr : &*found;
}

/// At the start all groups are waited for but the optional ones, later any of them will do.
bool has_enough_groups(const SupervisorState& supervisor) {
  if (!supervisor.started.pending()) return find_serving(supervisor) != nullptr;
  return std::none_of(supervisor.groups.begin(), supervisor.groups.end(),
                      [](const GroupSlot& g) { return g.state == GroupState::kStarting; });
}

void report_started(Self self) {
  SupervisorState& supervisor = state(self);
  const GroupSlot& group = *find_serving(supervisor);
  const ModelLoaded& model = group.model;
  std::int32_t num_blocks = 0;
  for (const GroupSlot& each : supervisor.groups) {
    if (each.state == GroupState::kServing) num_blocks += each.cache.num_blocks;
  }
  log_info("engine ready", kv("architecture", model.architecture), kv("dtype", model.dtype),
           kv("cpu_isa", model.cpu_isa), kv("max_model_len", model.max_model_len),
           kv("canonical_shards", model.canonical_shards), kv("groups", supervisor.groups.size()),
           kv("workers", group.workers.size()), kv("weight_mib", model.weight_bytes >> 20),
           kv("kv_blocks", group.cache.num_blocks - 1), kv("kv_groups", group.cache.groups.size()));
  EngineHandles& handles = *supervisor.handles;
  handles.request_defaults =
      request_defaults(supervisor.start.options, supervisor.sampling_defaults, model);
  handles.router = supervisor.router;
  supervisor.started.deliver(
      Started{.model = model, .num_blocks = num_blocks, .port = supervisor.http_port});
}

/// The RequestRouter gives the group its requests from now on.
void hand_over(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  send(self, supervisor.router, EngineReady{static_cast<std::uint32_t>(group)},
       input_processors(slot), slot.first_of<OutputProcessorActor>(Role::kOutputProcessor),
       slot.first_of<SchedulerActor>(Role::kScheduler));
}

/// It serves, for clients too.
void report_group(Self self, std::size_t group) {
  GroupSlot& slot = state(self).groups[group];
  slot.num_recoveries = state(self).num_front_losses = 0;
  log_info("engine restarted", kv("group", group), kv("incarnation", slot.incarnation));
}

/// What did not come up is to be tried again.
void fail_front(Self self, Role role, const Error& error) {
  SupervisorState& supervisor = state(self);
  if (role == Role::kFrontend) {
    if (supervisor.frontend)  // this one will never have a port
      end_quietly(supervisor, caf::actor_cast<caf::strong_actor_ptr>(supervisor.frontend));
    lose_frontend(supervisor);
  } else {
    lose_router(supervisor);
  }
  if (supervisor.started.pending()) return refuse_start(self, error);
  recover_front(self, error.message, LossCause::kOutside);
}

/// Asks on behalf of a RequestRouter or a Frontend that there is, or is to be.
template <class Handle, class OnAnswer, class... Question>
void ask_for_front(Self self, Role role, const Handle& to, const char* what, OnAnswer on_answer,
                   Question&&... question) {
  const auto life_of = [role](const SupervisorState& supervisor) {
    return role == Role::kFrontend ? supervisor.frontend_life : supervisor.router_life;
  };
  const std::uint64_t life = life_of(state(self));
  ask(self, to, kControlDeadline, std::forward<Question>(question)...)
      .then(on_answer, [=](const caf::error& error) {
        if (life_of(state(self)) != life || state(self).stopping) return;
        fail_front(
            self, role,
            {ErrorCode::kInternal, std::string(what) + ": " + to_text(error, self->system())});
      });
}

/// Whoever has requests can reach the RequestRouter. Pre: there is one.
bool reaches_clients(const SupervisorState& supervisor) {
  return supervisor.start.serve_http ? supervisor.listening : !supervisor.started.pending();
}

void report_groups(Self self) {
  for (std::size_t group = 0; group < state(self).groups.size(); ++group) {
    if (state(self).groups[group].state == GroupState::kServing) report_group(self, group);
  }
}

void on_listening(Self self, const Listening& listening) {
  SupervisorState& supervisor = state(self);
  if (listening.error) return fail_front(self, Role::kFrontend, *listening.error);
  supervisor.http_port = listening.port;
  supervisor.listening = true;
  if (supervisor.started.pending()) return report_started(self);
  report_groups(self);
}

void open_port(Self self) {
  const std::uint64_t life = state(self).frontend_life;
  ask_for_front(
      self, Role::kFrontend, state(self).frontend, "the frontend did not open the port",
      [=](const Listening& listening) {
        if (state(self).frontend_life == life) on_listening(self, listening);
      },
      Listen{});
}

void spawn_frontend(Self self) {
  SupervisorState& supervisor = state(self);
  const GroupSlot& group = *find_serving(supervisor);
  const std::size_t index = supervisor.node_of(Role::kFrontend);
  const std::uint64_t life = supervisor.frontend_life;
  supervisor.frontend_spawning = true;
  ask_for_front(
      self, Role::kFrontend, supervisor.nodes[index].node, "the frontend did not start",
      [=](const Status& status, const ActorHandles& handles) {
        SupervisorState& supervisor = state(self);
        if (supervisor.frontend_life != life) return;
        if (const auto error = refusal(status, handles))
          return fail_front(self, Role::kFrontend, *error);
        supervisor.frontend_spawning = false;
        supervisor.frontend = caf::actor_cast<FrontendActor>(handles.at(0));
        watch(self, "frontend", handles[0], index);
        open_port(self);
      },
      SpawnRole{.role = Role::kFrontend,
                .model = group.model,
                .cache = group.cache,
                .port = supervisor.http_port,
                .peers = {Peer::kRequestRouter}},
      ActorHandles{caf::actor_cast<caf::strong_actor_ptr>(supervisor.router)});
}

void on_router_spawned(Self self, const caf::strong_actor_ptr& router) {
  SupervisorState& supervisor = state(self);
  supervisor.router_spawning = false;
  supervisor.router = caf::actor_cast<RequestRouterActor>(router);
  watch(self, "request router", router, supervisor.node_of(Role::kRequestRouter));
  for (std::size_t group = 0; group < supervisor.groups.size(); ++group) {
    if (supervisor.groups[group].state == GroupState::kServing) hand_over(self, group);
  }
  if (supervisor.frontend) {
    send(self, supervisor.nodes[supervisor.node_of(Role::kFrontend)].node, RouterReady{},
         ActorHandles{router});
  }
  if (reaches_clients(supervisor)) report_groups(self);
  if (!supervisor.started.pending() && supervisor.start.on_router)
    supervisor.start.on_router(supervisor.router);
  advance_front(self);
}

void spawn_router(Self self) {
  SupervisorState& supervisor = state(self);
  const std::uint64_t life = ++supervisor.router_life;
  supervisor.router_spawning = true;
  ask_for_front(
      self, Role::kRequestRouter, supervisor.nodes[supervisor.node_of(Role::kRequestRouter)].node,
      "the request router did not start",
      [=](const Status& status, const ActorHandles& handles) {
        if (state(self).router_life != life) return;
        if (const auto error = refusal(status, handles))
          return fail_front(self, Role::kRequestRouter, *error);
        on_router_spawned(self, handles.at(0));
      },
      SpawnRole{.role = Role::kRequestRouter, .life = life}, ActorHandles{});
}

}  // namespace

std::optional<Error> refusal(const Status& status, const ActorHandles& handles) {
  if (status.error) return status.error;
  if (!handles.empty() && std::find(handles.begin(), handles.end(), nullptr) == handles.end())
    return std::nullopt;
  return Error{ErrorCode::kInternal, "a node has started no actor", ""};
}

void lose_frontend(SupervisorState& supervisor) {
  supervisor.frontend = nullptr;
  supervisor.frontend_spawning = supervisor.listening = false;
  ++supervisor.frontend_life;
}

void lose_router(SupervisorState& supervisor) {
  supervisor.router = nullptr;
  supervisor.router_spawning = false;
  ++supervisor.router_life;
}

void advance_front(Self self) {
  SupervisorState& supervisor = state(self);
  if (supervisor.stopping || supervisor.given_up || supervisor.front_waits) return;
  if (!supervisor.router) {
    const NodeSlot& node = supervisor.nodes[supervisor.node_of(Role::kRequestRouter)];
    if (!supervisor.router_spawning && node.connected) spawn_router(self);
    return;
  }
  if (supervisor.frontend || supervisor.frontend_spawning || !has_enough_groups(supervisor)) return;
  if (!supervisor.start.serve_http) {
    if (supervisor.started.pending()) report_started(self);
    return;
  }
  const std::size_t index = supervisor.node_of(Role::kFrontend);
  if (!supervisor.nodes[index].connected) return;
  if (!supervisor.nodes[index].prepared) return prepare_node(self, index);
  spawn_frontend(self);
}

void on_group_up(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  if (supervisor.router) hand_over(self, group);
  if (supervisor.router && reaches_clients(supervisor)) report_group(self, group);
  advance_front(self);
}

void recover_front(Self self, const std::string& reason, LossCause cause) {
  SupervisorState& supervisor = state(self);
  if (supervisor.stopping || supervisor.given_up) return;
  if (supervisor.started.pending()) return refuse_start(self, {ErrorCode::kInternal, reason});
  if (++supervisor.num_front_losses > kMaxFrontLosses) return give_up(self, reason);
  // What fails again at once may lack a node that we have not heard to be gone.
  supervisor.front_waits = supervisor.num_front_losses > 1;
  if (supervisor.router) {
    log_error("incident", kv("cause", reason), kv("role", "frontend"),
              kv("recovery", supervisor.num_front_losses));
  } else {
    recover_all(self, reason, cause);
  }
  advance_front(self);
}

// ---- Watching, and the end ---------------------------------------------------------------------

void watch(Self self, std::string name, const caf::strong_actor_ptr& actor, std::size_t node,
           std::optional<std::size_t> group) {
  const auto handle = caf::actor_cast<caf::actor>(actor);
  self->monitor(handle);
  if (state(self).start.on_spawned) state(self).start.on_spawned(name, handle);
  state(self).watched.push_back({std::move(name), handle, node, group});
}

void end_quietly(SupervisorState& supervisor, const caf::strong_actor_ptr& actor) {
  const auto handle = caf::actor_cast<caf::actor>(actor);
  std::erase_if(supervisor.watched, [&](const Watched& w) { return w.actor == handle; });
  caf::anon_send_exit(handle, caf::exit_reason::kill);
}

void end_children(Self self) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.stopping) {
    supervisor.stopping = true;
    supervisor.killed_at = now_seconds() + kLeaveTimeout_s;
  }
  if (!supervisor.watched.empty()) {
    // Its DOWN message goes on from here.
    caf::anon_send_exit(supervisor.watched.back().actor, caf::exit_reason::user_shutdown);
    return;
  }
  for (const NodeSlot& slot : supervisor.nodes) {
    if (slot.node) send(self, slot.node, LeaveNode{});
  }
  const bool running = std::any_of(supervisor.nodes.begin(), supervisor.nodes.end(),
                                   [](const NodeSlot& slot) { return slot.process != nullptr; });
  if (running) return;  // their NodeExited goes on from here
  if (supervisor.stopped.pending()) supervisor.stopped.deliver(Stopped{!supervisor.given_up});
  self->quit();
}

void refuse_start(Self self, Error error) {
  if (!state(self).started.pending()) return;  // refused before
  state(self).started.deliver(Started{.error = std::move(error)});
  end_children(self);
}

void give_up(Self self, const std::string& reason) {
  SupervisorState& supervisor = state(self);
  log_error("the engine is given up", kv("reason", reason));
  supervisor.given_up = true;
  if (supervisor.router) send(self, supervisor.router, EngineHealth{false, reason});
  if (supervisor.start.on_failure) supervisor.start.on_failure(reason);
}

namespace {

void on_down(Self self, const caf::down_msg& down) {
  SupervisorState& supervisor = state(self);
  const auto found =
      std::find_if(supervisor.watched.begin(), supervisor.watched.end(),
                   [&](const Watched& w) { return w.actor.address() == down.source; });
  if (found == supervisor.watched.end()) return;
  const Watched gone = *found;
  supervisor.watched.erase(found);
  if (supervisor.stopping) return end_children(self);
  const std::string reason = gone.name + " ended: " + to_text(down.reason, self->system());
  if (gone.name == kRemoteWorkers) {
    // Most likely a worker's process is gone: that one says how it ended, a moment later.
    const SupervisorActor me = self;
    return send_after(self, kConfirmDelay, me,
                      ConfirmLoss{static_cast<std::uint32_t>(*gone.group),
                                  supervisor.groups[*gone.group].incarnation, reason});
  }
  NodeSlot& slot = supervisor.nodes[gone.node];
  const bool node_gone = down.reason == caf::exit_reason::remote_link_unreachable ||
                         (slot.node && slot.node.address() == down.source);
  if (node_gone) {
    // A process of ours that has crashed says so itself, with how; that is a moment away.
    if (slot.process) return;
    lose_node(self, gone.node);
    return recover_node(self, gone.node, reason, LossCause::kKilled);
  }
  if (!gone.group) {
    const bool is_router = supervisor.router && supervisor.router.address() == down.source;
    is_router ? lose_router(supervisor) : lose_frontend(supervisor);
    return recover_front(self, reason, LossCause::kCrashed);
  }
  for (WorkerSlot& worker : supervisor.groups[*gone.group].workers) {
    if (worker.worker && worker.worker.address() == down.source) worker = {.node = gone.node};
  }
  recover_group(self, *gone.group, reason, LossCause::kCrashed);
}

// ---- From outside ------------------------------------------------------------------------------

/// In shared memory, where no two engines of a host meet under one name, or with workers on several
/// hosts at that of rank 0, on a port behind the Supervisor's.
std::string rendezvous_name(const SupervisorState& supervisor, std::size_t group) {
  const TopologyOptions& topology = supervisor.start.options.topology;
  const std::vector<WorkerSlot>& workers = supervisor.groups[group].workers;
  const auto host = [&](const WorkerSlot& slot) {
    const std::string& own = supervisor.nodes[slot.node].config.host;
    return own.empty() ? topology.supervisor_host : own;
  };
  const std::string first = host(workers.front());
  const bool on_one_host = std::all_of(workers.begin(), workers.end(),
                                       [&](const WorkerSlot& slot) { return host(slot) == first; });
  if (!on_one_host) {
    const auto port = topology.supervisor_port + 1 + static_cast<std::int64_t>(group);
    return "tcp:" + first + ":" + std::to_string(port);
  }
  return "shm:troupe-" + std::to_string(getpid()) + "-" + random_secret();
}

/// Options and generation config first, as they are quick to be wrong.
Result<void> start(Self self) {
  SupervisorState& supervisor = state(self);
  const Options& options = supervisor.start.options;
  ASSIGN_OR_RETURN(const GenerationConfig generation, load_generation_config(options.model.model));
  ASSIGN_OR_RETURN(supervisor.sampling_defaults, sampling_defaults(generation, options.model));
  ASSIGN_OR_RETURN(Topology topology, options_topology(options));
  supervisor.groups.resize(static_cast<std::size_t>(topology.size.num_groups));
  for (GroupSlot& group : supervisor.groups)
    group.workers.resize(static_cast<std::size_t>(topology.size.num_workers));
  for (std::size_t index = 0; index < topology.nodes.size(); ++index) {
    NodeConfig& node = topology.nodes[index];
    for (const std::int32_t number : node.groups) {
      if (node.serves_all_groups()) break;
      GroupSlot& group = supervisor.groups[static_cast<std::size_t>(number)];
      if (node.optional) group.state = GroupState::kAbsent;
      for (const std::int32_t rank : node.workers)
        group.workers[static_cast<std::size_t>(rank)].node = index;
    }
    supervisor.nodes.push_back({.config = std::move(node)});
  }
  if (topology.size.num_workers > 1) {
    for (std::size_t group = 0; group < supervisor.groups.size(); ++group)
      supervisor.groups[group].rendezvous = rendezvous_name(supervisor, group);
  }
  return start_nodes(self);
}

void begin(Self self) {
  check_nodes_later(self);
  if (auto begun = start(self); !begun.ok()) return refuse_start(self, begun.error());
  advance_front(self);
  for (std::size_t group = 0; group < state(self).groups.size(); ++group)
    advance_group(self, group);
}

/// Asks who has requests to let them end; then calls `next`.
template <class Handle, class Next>
void drain(Self self, const Handle& who, const char* name, double timeout_s, Next next) {
  if (!who) return next();
  ask(self, who, from_seconds(timeout_s) + kControlDeadline, Drain{timeout_s})
      .then(
          [=](const Drained& drained) {
            log_info("drained", kv("who", name), kv("aborted", drained.num_aborted));
            next();
          },
          [=](const caf::error& error) {
            log_warning("not drained", kv("who", name),
                        kv("error", to_text(error, self->system())));
            next();
          });
}

/// The HTTP server's clients first, then those that have none in between.
void stop(Self self, double drain_timeout_s) {
  drain(self, state(self).frontend, "frontend", drain_timeout_s, [=] {
    drain(self, state(self).router, "request router", drain_timeout_s,
          [self] { end_children(self); });
  });
}

/// The share that all workers have loaded. Comes from one of them.
void on_progress(Self self, LoadProgress progress) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.start.on_progress || !supervisor.started.pending()) return;
  const double own = progress.fraction >= 0 ? std::min(progress.fraction, 1.0) : 0;  // not NaN
  progress.fraction = 1;
  for (GroupSlot& group : supervisor.groups) {
    if (group.state == GroupState::kAbsent) continue;
    for (WorkerSlot& worker : group.workers) {
      if (worker.worker && worker.worker.address() == self->current_sender()) worker.fraction = own;
      progress.fraction = std::min(progress.fraction, worker.fraction);
    }
  }
  supervisor.start.on_progress(progress);
}

TopologyStatus topology_status(const SupervisorState& supervisor) {
  TopologyStatus status;
  for (const GroupSlot& group : supervisor.groups)
    status.groups.push_back({group.state, group.incarnation});
  for (const NodeSlot& node : supervisor.nodes) {
    NodeStatus& listed = status.nodes.emplace_back();
    listed = {.name = node.config.name, .host = node.address.host, .joined = node.connected};
    if (!node.config.serves_all_groups()) listed.groups = node.config.groups;
  }
  return status;
}

SupervisorActor::behavior_type supervisor_behavior(Self self, const StartOptions& options,
                                                   const std::shared_ptr<EngineHandles>& handles) {
  state(self).start = options;
  state(self).handles = handles;
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  self->set_exception_handler([self](std::exception_ptr& exception) -> caf::error {
    const std::string reason = "the supervisor ends: " + describe(exception);
    log_error("the supervisor ends", kv("reason", reason));
    if (state(self).started.pending()) {
      state(self).started.deliver(Started{.error = Error{ErrorCode::kInternal, reason}});
    } else {
      give_up(self, reason);
    }
    return exit_reason_of(reason);
  });
  return {
      [self](const Start&) -> caf::result<Started> {
        state(self).started = self->make_response_promise<Started>();
        auto promise = state(self).started;
        begin(self);
        return promise;
      },
      [self](const Stop& message) -> caf::result<Stopped> {
        state(self).stopped = self->make_response_promise<Stopped>();
        auto promise = state(self).stopped;
        stop(self, message.drain_timeout_s);
        return promise;
      },
      [self](const LoadProgress& progress) { on_progress(self, progress); },
      [self](const JoinNode& join, const ActorHandles& handles) {
        return on_join(self, join, handles);
      },
      [self](const NodeConnected& connected) { on_connected(self, connected); },
      [self](const HeartbeatReply& reply) { on_heartbeat(self, reply); },
      [self](const EndGroup& end) {
        const auto ended = end_group(self, end.group, "drained");
        return Status{ended.ok() ? std::nullopt : std::optional(ended.error())};
      },
      [self](const AskTopology&) { return topology_status(state(self)); },
      [self](const NodeExited& exited) { on_node_exited(self, exited); },
      [self](const CheckNodes&) { check_nodes(self); },
      [self](const ConfirmLoss& loss) { on_confirm_loss(self, loss); },
  };
}

}  // namespace
}  // namespace supervision

SupervisorActor spawn_supervisor(caf::actor_system& system, const StartOptions& options,
                                 std::shared_ptr<EngineHandles> handles) {
  return system.spawn<caf::detached>(supervision::supervisor_behavior, options, std::move(handles));
}

}  // namespace troupe
