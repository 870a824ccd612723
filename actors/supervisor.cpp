// The Supervisor: brings up the actors of one engine in the nodes of the topology, watches them,
// starts anew what ends, stops them in reverse order.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "actors/engine_settings.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/child_process.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kLoadDeadline = 1h;
constexpr auto kControlDeadline = 60s;
constexpr auto kCheckInterval = 500ms;
constexpr auto kConfirmDelay = 200ms;
/// Processes that were asked to leave are killed after so long.
constexpr double kLeaveTimeout_s = 5;
/// An engine that fails so often in a row to come up is given up.
constexpr int kMaxRecoveries = 8;
/// A process that dies so soon after its start is started again after that time only.
constexpr double kRestartInterval_s = 0.2;

/// A process of the topology.
struct NodeSlot {
  NodeConfig config;
  std::unique_ptr<ChildProcess> process;  ///< null: on another host, or this process itself
  std::uint64_t life = 0;                 ///< counts its processes
  double started_at = 0;
  NodeActor node;  ///< null: not there (yet)
  HeartActor heart;
  NodeAddress address;
  bool connected = false;  ///< to the other nodes
  bool preparing = false;
  bool prepared = false;       ///< but for the tokenizer
  bool has_tokenizer = false;  ///< if it needs one
  double heard_at = 0;
};

struct WorkerSlot {
  std::size_t node = 0;
  WorkerActor worker;  ///< null: not there (yet)
  bool spawning = false;
  double fraction = 0;  ///< of the weights that are loaded
  std::optional<ModelLoaded> loaded;
};

/// Bringing up the engine goes through these, in this order, again and again until all is done.
enum class Phase : std::uint8_t { kStarting, kServing, kStopping };

constexpr std::array kSpawnOrder = {
    Role::kExecutor,        Role::kKVCacheManager, Role::kEncoderCacheManager,
    Role::kOutputProcessor, Role::kScheduler,      Role::kInputProcessor};

constexpr std::string_view kRemoteWorkers = "remote workers";

/// Somebody whose end is an incident.
struct Watched {
  std::string name;
  caf::actor actor;
  std::size_t node = 0;
};

struct SupervisorState {
  SupervisorState() = default;
  static inline const char* name = "supervisor";

  StartOptions start;
  std::shared_ptr<EngineHandles> handles;
  SamplingDefaults sampling_defaults;
  Phase phase = Phase::kStarting;

  std::unique_ptr<Network> network;  ///< null: all is in one process
  std::vector<NodeSlot> nodes;
  std::uint16_t port = 0;  ///< where nodes join
  std::uint64_t heartbeat = 0;

  /// Rises whenever something of the engine is lost: answers to earlier questions mean nothing.
  std::uint32_t incarnation = 1;
  std::vector<WorkerSlot> workers;  ///< by rank
  std::string rendezvous;           ///< where they meet; empty: there is one
  std::string secret = random_secret();
  ModelLoaded model;
  KVCacheConfig cache;
  bool caches_asked = false;
  std::size_t num_caches = 0;   ///< workers that have taken their memory
  std::size_t num_spawned = 0;  ///< of kSpawnOrder
  std::array<ActorHandles, kNumRoles> actors;
  FrontendActor frontend;
  std::uint16_t http_port = 0;  ///< the next Frontend opens the same one
  bool frontend_spawning = false;
  std::vector<Watched> watched;  ///< in the order of spawning

  int num_recoveries = 0;  ///< since the engine was last up
  bool crashed = false;    ///< what was lost last fell by itself
  bool clean = true;
  double killed_at = 0;  ///< while stopping: when processes that are left are killed
  caf::typed_response_promise<Started> started;
  caf::typed_response_promise<Stopped> stopped;
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

void advance(Self self);
void recover(Self self, const std::string& cause, bool crashed);

bool is_single_process(const SupervisorState& supervisor) {
  return supervisor.nodes.size() == 1 && supervisor.nodes.front().config.name.empty();
}

/// Who spawns, watches.
void watch(Self self, std::string name, const caf::strong_actor_ptr& actor, std::size_t node) {
  const auto handle = caf::actor_cast<caf::actor>(actor);
  self->monitor(handle);
  state(self).watched.push_back({std::move(name), handle, node});
}

/// Its end is no incident.
template <class Handle>
void end_quietly(SupervisorState& supervisor, const Handle& handle) {
  const auto actor = caf::actor_cast<caf::actor>(handle);
  std::erase_if(supervisor.watched, [&](const Watched& w) { return w.actor == actor; });
  caf::anon_send_exit(actor, caf::exit_reason::kill);
}

const ActorHandles& actors_of(const SupervisorState& supervisor, Role role) {
  return supervisor.actors[static_cast<std::size_t>(role)];
}

/// Pre: the role has been spawned.
template <class Handle = caf::strong_actor_ptr>
Handle first_of(const SupervisorState& supervisor, Role role) {
  return caf::actor_cast<Handle>(actors_of(supervisor, role).at(0));
}

std::vector<InputProcessorActor> input_processors(const SupervisorState& supervisor) {
  std::vector<InputProcessorActor> pool;
  for (const caf::strong_actor_ptr& handle : actors_of(supervisor, Role::kInputProcessor))
    pool.push_back(caf::actor_cast<InputProcessorActor>(handle));
  return pool;
}

std::size_t node_index(const SupervisorState& supervisor, Role role) {
  std::size_t index = 0;
  while (!supervisor.nodes[index].config.has(role)) ++index;
  return index;
}

// ---- The end ---------------------------------------------------------------------------------

/// Ends the actors one by one, last spawned first; then the processes.
void end_children(Self self) {
  SupervisorState& supervisor = state(self);
  if (supervisor.phase != Phase::kStopping) {
    supervisor.phase = Phase::kStopping;
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
  if (supervisor.stopped.pending()) supervisor.stopped.deliver(Stopped{supervisor.clean});
  self->quit();
}

/// Before the engine has ever served: nothing is tried twice.
void refuse_start(Self self, Error error) {
  if (!state(self).started.pending()) return;  // refused before
  state(self).started.deliver(Started{.error = std::move(error)});
  end_children(self);
}

/// There will be no engine any more.
void give_up(Self self, const std::string& reason) {
  SupervisorState& supervisor = state(self);
  log_error("the engine is given up", kv("reason", reason));
  supervisor.clean = false;
  if (supervisor.frontend) send(self, supervisor.frontend, EngineHealth{false, reason});
  if (supervisor.start.on_failure) supervisor.start.on_failure(reason);
}

/// Something did not come up. The first time that refuses the start; later it is tried again.
void fail(Self self, Error error) {
  if (state(self).started.pending()) return refuse_start(self, std::move(error));
  recover(self, error.message, false);
}

// ---- Nodes -----------------------------------------------------------------------------------

void start_process(Self self, std::size_t index) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[index];
  slot.started_at = now_seconds();
  std::vector<std::string> arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                        "node", slot.config.name};
  const auto& own = supervisor.start.node_arguments;
  arguments.insert(arguments.end(), own.begin(), own.end());
  arguments.insert(arguments.end(), {"--supervisor-port", std::to_string(supervisor.port)});
  const SupervisorActor me = self;
  const NodeExited exited{.node = static_cast<std::uint32_t>(index), .life = ++slot.life};
  auto process = ChildProcess::start(arguments, [me, exited](ProcessEnd end) {
    NodeExited message = exited;
    message.how = std::move(end.text);
    message.crashed = end.crashed;
    post(me, std::move(message));
  });
  if (!process.ok()) return fail(self, process.error());
  slot.process = std::move(process).value();
}

/// The node is gone, or is to be: what is left of its process is killed, and comes back by itself.
void lose_node(Self self, std::size_t index) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[index];
  std::erase_if(supervisor.watched, [&](const Watched& w) { return w.node == index; });
  for (WorkerSlot& worker : supervisor.workers) {
    if (worker.node == index) worker = {.node = index};
  }
  if (slot.config.has(Role::kFrontend)) {
    supervisor.frontend = nullptr;
    supervisor.frontend_spawning = false;
  }
  slot.node = nullptr;
  slot.heart = nullptr;
  slot.connected = slot.preparing = slot.prepared = slot.has_tokenizer = false;
  if (slot.process) slot.process->kill();
}

void on_node_exited(Self self, const NodeExited& exited) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[exited.node];
  if (slot.life != exited.life) return;
  const bool was_there = slot.node != nullptr;
  if (supervisor.phase == Phase::kStopping) {
    slot.process = nullptr;
    lose_node(self, exited.node);
    return end_children(self);
  }
  const std::string what = "node " + slot.config.name + " ended: " + exited.how;
  if (supervisor.started.pending()) {
    slot.process = nullptr;
    return refuse_start(self, {ErrorCode::kUnavailable, what});
  }
  lose_node(self, exited.node);
  slot.process = nullptr;
  if (was_there) {
    recover(self, what, exited.crashed);
  } else {
    log_warning("node process ended", kv("node", slot.config.name), kv("how", exited.how));
  }
  if (now_seconds() - slot.started_at >= kRestartInterval_s) start_process(self, exited.node);
  // Else the next look at the nodes does it.
}

NodeAccepted on_join(Self self, const JoinNode& join, const ActorHandles& handles) {
  SupervisorState& supervisor = state(self);
  const auto refuse = [](std::string reason) {
    log_warning("node refused", kv("reason", reason));
    return NodeAccepted{.error = Error{ErrorCode::kInvalidArgument, std::move(reason)}};
  };
  if (join.protocol != kProtocolVersion || join.version != TROUPE_VERSION) {
    return refuse("node '" + join.name + "' is troupe " + join.version + " (protocol " +
                  std::to_string(join.protocol) +
                  "), the supervisor is troupe " TROUPE_VERSION " (protocol " +
                  std::to_string(kProtocolVersion) + ")");
  }
  std::size_t index = 0;
  while (index < supervisor.nodes.size() && supervisor.nodes[index].config.name != join.name)
    ++index;
  if (index == supervisor.nodes.size() || handles.size() != 2)
    return refuse("the topology has no node '" + join.name + "'");
  NodeSlot& slot = supervisor.nodes[index];
  if (slot.process && slot.process->pid() != join.pid) {
    return refuse("node '" + join.name + "' is process " + std::to_string(slot.process->pid()) +
                  ", not " + std::to_string(join.pid));
  }
  if (supervisor.phase == Phase::kStopping) return refuse("the system is shutting down");
  if (slot.node) {
    lose_node(self, index);
    recover(self, "node " + join.name + " has come anew", false);
  }
  slot.node = caf::actor_cast<NodeActor>(handles[0]);
  slot.heart = caf::actor_cast<HeartActor>(handles[1]);
  slot.heard_at = now_seconds();
  const std::string& host = slot.config.host;
  slot.address = {host.empty() ? supervisor.start.options.topology.supervisor_host : host,
                  join.port};
  watch(self, "node " + join.name, handles[0], index);
  NodeAccepted accepted;
  for (const NodeSlot& other : supervisor.nodes) {
    if (&other != &slot && other.node) accepted.peers.push_back(other.address);
  }
  return accepted;
}

void on_connected(Self self, const NodeConnected& connected) {
  SupervisorState& supervisor = state(self);
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (!slot.node || slot.node.address() != self->current_sender()) continue;
    if (connected.error) {
      lose_node(self, index);
      return fail(self, {connected.error->code,
                         "node " + slot.config.name + " cannot reach " + connected.error->message});
    }
    slot.connected = true;
    log_info("node joined", kv("node", slot.config.name), kv("host", slot.address.host));
    return advance(self);
  }
}

void on_heartbeat(Self self, const HeartbeatReply& reply) {
  SupervisorState& supervisor = state(self);
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (!slot.heart || slot.heart.address() != self->current_sender()) continue;
    slot.heard_at = now_seconds();
    if (supervisor.phase != Phase::kServing ||
        reply.busy_s < supervisor.start.options.topology.step_timeout_s)
      return;
    const std::string what = "a worker of node " + slot.config.name + " has been at a step for " +
                             std::to_string(static_cast<int>(reply.busy_s)) + " s";
    if (slot.process) lose_node(self, index);
    return recover(self, what, false);
  }
}

void check_nodes_later(Self self) {
  const SupervisorActor me = self;
  send_after(self, kCheckInterval, me, CheckNodes{});
}

void check_nodes(Self self) {
  SupervisorState& supervisor = state(self);
  const double now = now_seconds();
  const bool single = is_single_process(supervisor);
  if (supervisor.phase == Phase::kStopping) {
    if (now >= supervisor.killed_at) {
      for (NodeSlot& slot : supervisor.nodes) {
        if (slot.process) slot.process->kill();
      }
      supervisor.watched.clear();  // who has not ended by now is on a node that is gone
      end_children(self);
    }
    return check_nodes_later(self);
  }
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (slot.heart) send(self, slot.heart, Heartbeat{++supervisor.heartbeat});
    const double silent_s = now - slot.heard_at;
    if (slot.node && !single && silent_s > supervisor.start.options.topology.node_timeout_s) {
      lose_node(self, index);
      recover(self,
              "node " + slot.config.name + " has been silent for " +
                  std::to_string(static_cast<int>(silent_s * 1000)) + " ms",
              false);
    }
    if (!slot.process && !single && slot.config.host.empty() &&
        now - slot.started_at >= kRestartInterval_s)
      start_process(self, index);
  }
  check_nodes_later(self);
}

// ---- Bringing up -------------------------------------------------------------------------------

/// Asks; an answer that belongs to an earlier incarnation is dropped, and so is its failure.
template <class Handle, class OnAnswer, class... Question>
void ask_now(Self self, const Handle& to, std::chrono::nanoseconds deadline, std::string what,
             OnAnswer on_answer, Question&&... question) {
  const std::uint32_t incarnation = state(self).incarnation;
  ask(self, to, deadline, std::forward<Question>(question)...)
      .then(on_answer, [=](const caf::error& error) {
        if (state(self).incarnation != incarnation || state(self).phase == Phase::kStopping) return;
        fail(self, {ErrorCode::kInternal, what + ": " + to_text(error, self->system())});
      });
}

void prepare_nodes(Self self) {
  SupervisorState& supervisor = state(self);
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (slot.has_tokenizer || slot.preparing) continue;
    slot.preparing = true;
    const std::uint64_t life = slot.life;
    ask_now(
        self, slot.node, kControlDeadline, "node " + slot.config.name + " is not ready",
        [=](const Status& status) {
          NodeSlot& slot = state(self).nodes[index];
          if (slot.life != life) return;
          slot.preparing = false;
          if (status.error) return fail(self, *status.error);
          (slot.prepared ? slot.has_tokenizer : slot.prepared) = true;
          advance(self);
        },
        PrepareNode{slot.prepared});
  }
}

/// Workers on the host of this one, itself included.
std::int32_t num_workers_beside(const SupervisorState& supervisor, std::size_t rank) {
  const auto host = [&](const WorkerSlot& slot) -> const std::string& {
    return supervisor.nodes[slot.node].config.host;
  };
  return static_cast<std::int32_t>(std::count_if(
      supervisor.workers.begin(), supervisor.workers.end(),
      [&](const WorkerSlot& s) { return host(s) == host(supervisor.workers[rank]); }));
}

void load_model(Self self, std::size_t rank) {
  SupervisorState& supervisor = state(self);
  const std::uint32_t incarnation = supervisor.incarnation;
  ParallelConfig parallel = parallel_config(supervisor.start.options.engine);
  parallel.rank = static_cast<std::int32_t>(rank);
  parallel.ranks_on_host = num_workers_beside(supervisor, rank);
  parallel.rendezvous = supervisor.rendezvous;
  parallel.secret = supervisor.secret;
  parallel.incarnation = incarnation;
  ask_now(
      self, supervisor.workers[rank].worker, kLoadDeadline,
      "worker " + std::to_string(rank) + " did not load",
      [=](ModelLoaded& model) {
        if (state(self).incarnation != incarnation) return;
        if (model.error) return fail(self, *model.error);
        state(self).workers[rank].loaded = std::move(model);
        advance(self);
      },
      LoadModel{worker_options(supervisor.start.options, parallel)});
}

void spawn_workers(Self self) {
  SupervisorState& supervisor = state(self);
  const std::uint32_t incarnation = supervisor.incarnation;
  for (std::size_t rank = 0; rank < supervisor.workers.size(); ++rank) {
    WorkerSlot& slot = supervisor.workers[rank];
    if (slot.worker || slot.spawning) continue;
    slot.spawning = true;
    ask_now(
        self, supervisor.nodes[slot.node].node, kControlDeadline,
        "worker " + std::to_string(rank) + " did not start",
        [=](const Status& status, const ActorHandles& handles) {
          if (state(self).incarnation != incarnation) return;
          if (status.error) return fail(self, *status.error);
          WorkerSlot& slot = state(self).workers[rank];
          slot.spawning = false;
          slot.worker = caf::actor_cast<WorkerActor>(handles.at(0));
          watch(self, "worker", handles[0], slot.node);
          load_model(self, rank);
        },
        SpawnWorker{static_cast<std::int32_t>(rank)});
  }
}

/// All workers agree on what they have loaded; the first time that settles the cache.
Result<void> settle_model(SupervisorState& supervisor) {
  std::vector<ModelLoaded> loaded;
  for (const WorkerSlot& slot : supervisor.workers) loaded.push_back(*slot.loaded);
  ASSIGN_OR_RETURN(supervisor.model, join_loaded(loaded));
  const Options& options = supervisor.start.options;
  if (supervisor.cache.groups.empty()) {
    ASSIGN_OR_RETURN(supervisor.cache, kv_cache_config(options, supervisor.model));
  }
  ASSIGN_OR_RETURN(supervisor.model.max_model_len,
                   max_model_len(options, supervisor.model, supervisor.cache));
  return {};
}

void initialize_caches(Self self) {
  SupervisorState& supervisor = state(self);
  const std::uint32_t incarnation = supervisor.incarnation;
  supervisor.caches_asked = true;
  if (auto settled = settle_model(supervisor); !settled.ok()) return fail(self, settled.error());
  for (const WorkerSlot& slot : supervisor.workers) {
    ask_now(
        self, slot.worker, kControlDeadline, "the worker took no KV cache",
        [=](const Status& status) {
          if (state(self).incarnation != incarnation) return;
          if (status.error) return fail(self, *status.error);
          ++state(self).num_caches;
          advance(self);
        },
        InitializeKVCache{supervisor.cache, incarnation});
  }
}

/// The workers that share a host with the Executor, but not its process.
std::vector<std::int32_t> ring_ranks(const SupervisorState& supervisor) {
  const std::size_t executor = node_index(supervisor, Role::kExecutor);
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < supervisor.workers.size(); ++rank) {
    const std::size_t node = supervisor.workers[rank].node;
    if (node != executor &&
        supervisor.nodes[node].config.host == supervisor.nodes[executor].config.host)
      ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

/// Whom the actor of a role speaks with, in the order that its node expects.
ActorHandles peers_of(const SupervisorState& supervisor, Role role) {
  const auto first = [&](Role of) { return first_of(supervisor, of); };
  switch (role) {
    case Role::kExecutor: {
      ActorHandles workers;
      for (const WorkerSlot& slot : supervisor.workers)
        workers.push_back(caf::actor_cast<caf::strong_actor_ptr>(slot.worker));
      for (const std::int32_t rank : ring_ranks(supervisor)) {
        const WorkerSlot& slot = supervisor.workers[static_cast<std::size_t>(rank)];
        workers.push_back(caf::actor_cast<caf::strong_actor_ptr>(supervisor.nodes[slot.node].node));
      }
      return workers;
    }
    case Role::kScheduler:
      return {first(Role::kKVCacheManager), first(Role::kEncoderCacheManager),
              first(Role::kExecutor), first(Role::kOutputProcessor)};
    case Role::kInputProcessor:
      return {first(Role::kOutputProcessor), first(Role::kScheduler)};
    case Role::kFrontend: {
      ActorHandles engine = {first(Role::kOutputProcessor), first(Role::kScheduler)};
      const ActorHandles& pool = actors_of(supervisor, Role::kInputProcessor);
      engine.insert(engine.end(), pool.begin(), pool.end());
      return engine;
    }
    default:
      return {};
  }
}

template <class OnSpawned>
void spawn_role(Self self, Role role, OnSpawned on_spawned) {
  SupervisorState& supervisor = state(self);
  const std::uint32_t incarnation = supervisor.incarnation;
  const std::size_t index = node_index(supervisor, role);
  const std::string name(to_string(role));
  ask_now(
      self, supervisor.nodes[index].node, kControlDeadline, "the " + name + " did not start",
      [=](const Status& status, const ActorHandles& handles) {
        if (state(self).incarnation != incarnation) return;
        if (status.error) return fail(self, *status.error);
        for (const caf::strong_actor_ptr& handle : handles) {
          const bool rings = role == Role::kExecutor && handle != handles.front();
          watch(self, rings ? std::string(kRemoteWorkers) : name, handle, index);
        }
        on_spawned(handles);
      },
      SpawnRole{role, incarnation, supervisor.model, supervisor.cache, supervisor.http_port,
                ring_ranks(supervisor)},
      peers_of(supervisor, role));
}

void report_started(Self self, std::uint16_t port) {
  SupervisorState& supervisor = state(self);
  const ModelLoaded& model = supervisor.model;
  supervisor.phase = Phase::kServing;
  supervisor.num_recoveries = 0;
  if (!supervisor.started.pending()) {
    log_info("engine restarted", kv("incarnation", supervisor.incarnation));
    return;
  }
  log_info("engine ready", kv("architecture", model.architecture), kv("dtype", model.dtype),
           kv("cpu_isa", model.cpu_isa), kv("max_model_len", model.max_model_len),
           kv("canonical_shards", model.canonical_shards), kv("workers", supervisor.workers.size()),
           kv("weight_mib", model.weight_bytes >> 20),
           kv("kv_blocks", supervisor.cache.num_blocks - 1),
           kv("kv_groups", supervisor.cache.groups.size()));
  EngineHandles& handles = *supervisor.handles;
  handles.request_defaults =
      request_defaults(supervisor.start.options, supervisor.sampling_defaults, model);
  handles.input_processors = input_processors(supervisor);
  handles.scheduler = first_of<SchedulerActor>(supervisor, Role::kScheduler);
  handles.output_processor = first_of<OutputProcessorActor>(supervisor, Role::kOutputProcessor);
  supervisor.started.deliver(
      Started{.model = model, .num_blocks = supervisor.cache.num_blocks, .port = port});
}

/// The Frontend goes on with its requests in the new engine.
void hand_over_engine(Self self) {
  SupervisorState& supervisor = state(self);
  send(self, supervisor.frontend, EngineReplaced{std::exchange(supervisor.crashed, false)},
       input_processors(supervisor),
       first_of<OutputProcessorActor>(supervisor, Role::kOutputProcessor),
       first_of<SchedulerActor>(supervisor, Role::kScheduler));
}

void open_port(Self self) {
  const std::uint32_t incarnation = state(self).incarnation;
  ask_now(
      self, state(self).frontend, kControlDeadline, "the frontend did not open the port",
      [=](const Listening& listening) {
        SupervisorState& supervisor = state(self);
        if (listening.error && supervisor.frontend) {  // this one will never have a port
          end_quietly(supervisor, supervisor.frontend);
          supervisor.frontend = nullptr;
        }
        if (listening.error) return fail(self, *listening.error);
        supervisor.http_port = listening.port;
        if (supervisor.incarnation == incarnation) report_started(self, listening.port);
      },
      Listen{});
}

void spawn_frontend(Self self) {
  SupervisorState& supervisor = state(self);
  supervisor.frontend_spawning = true;
  spawn_role(self, Role::kFrontend, [=](const ActorHandles& handles) {
    state(self).frontend_spawning = false;
    state(self).frontend = caf::actor_cast<FrontendActor>(handles.at(0));
    open_port(self);
  });
}

/// Does what can be done next. Called whenever something has been achieved.
void advance(Self self) {
  SupervisorState& supervisor = state(self);
  if (supervisor.phase != Phase::kStarting) return;
  const auto& nodes = supervisor.nodes;
  const auto& workers = supervisor.workers;
  if (!std::all_of(nodes.begin(), nodes.end(), [](const NodeSlot& n) { return n.connected; }))
    return;
  if (!std::all_of(nodes.begin(), nodes.end(), [](const NodeSlot& n) { return n.prepared; }))
    return prepare_nodes(self);
  spawn_workers(self);  // they load while the tokenizer is read
  prepare_nodes(self);
  if (!std::all_of(nodes.begin(), nodes.end(), [](const NodeSlot& n) { return n.has_tokenizer; }) ||
      !std::all_of(workers.begin(), workers.end(), [](const WorkerSlot& w) { return w.loaded; }))
    return;
  if (!supervisor.caches_asked) return initialize_caches(self);
  if (supervisor.num_caches < workers.size()) return;
  if (supervisor.num_spawned < kSpawnOrder.size()) {
    const Role role = kSpawnOrder[supervisor.num_spawned];
    return spawn_role(self, role, [=](const ActorHandles& handles) {
      state(self).actors[static_cast<std::size_t>(role)] = handles;
      ++state(self).num_spawned;
      advance(self);
    });
  }
  if (!supervisor.start.serve_http) return report_started(self, 0);
  if (!supervisor.frontend) {
    if (!supervisor.frontend_spawning) spawn_frontend(self);
    return;
  }
  hand_over_engine(self);
  report_started(self, 0);
}

/// Something of the engine is gone. What lives of it ends, but the Frontend, and workers that have
/// lost no rank of their group; then it is brought up anew.
void recover(Self self, const std::string& cause, bool crashed) {
  SupervisorState& supervisor = state(self);
  if (supervisor.phase == Phase::kStopping) return;
  if (supervisor.started.pending()) return refuse_start(self, {ErrorCode::kInternal, cause});
  log_error("incident", kv("cause", cause), kv("incarnation", supervisor.incarnation),
            kv("recovery", supervisor.num_recoveries + 1));
  supervisor.crashed |= crashed;
  if (!supervisor.start.serve_http || ++supervisor.num_recoveries > kMaxRecoveries)
    return give_up(self, cause);
  if (supervisor.frontend) send(self, supervisor.frontend, EngineLost{cause});
  ++supervisor.incarnation;
  supervisor.phase = Phase::kStarting;
  supervisor.caches_asked = false;
  supervisor.num_caches = supervisor.num_spawned = 0;
  supervisor.frontend_spawning = false;
  for (NodeSlot& slot : supervisor.nodes) slot.preparing = false;
  for (ActorHandles& handles : supervisor.actors) {
    for (const caf::strong_actor_ptr& handle : handles) end_quietly(supervisor, handle);
    handles.clear();
  }
  const bool group_lost =
      std::any_of(supervisor.workers.begin(), supervisor.workers.end(),
                  [](const WorkerSlot& slot) { return !slot.worker || !slot.loaded; });
  if (group_lost) {
    for (WorkerSlot& slot : supervisor.workers) {
      if (slot.worker) end_quietly(supervisor, slot.worker);
      slot = {.node = slot.node};
    }
  }
  advance(self);
}

void on_down(Self self, const caf::down_msg& down) {
  SupervisorState& supervisor = state(self);
  const auto found =
      std::find_if(supervisor.watched.begin(), supervisor.watched.end(),
                   [&](const Watched& w) { return w.actor.address() == down.source; });
  if (found == supervisor.watched.end()) return;
  const Watched gone = *found;
  supervisor.watched.erase(found);
  if (supervisor.phase == Phase::kStopping) return end_children(self);
  const std::string reason = gone.name + " ended: " + to_text(down.reason, self->system());
  if (gone.name == kRemoteWorkers) {
    // Most likely a worker's process is gone: that one says how it ended, a moment later.
    const SupervisorActor me = self;
    return send_after(self, kConfirmDelay, me, ConfirmLoss{supervisor.incarnation, reason});
  }
  NodeSlot& slot = supervisor.nodes[gone.node];
  const bool node_gone = down.reason == caf::exit_reason::remote_link_unreachable ||
                         (slot.node && slot.node.address() == down.source);
  // A process of ours that has crashed says so itself, with how; that is a moment away.
  if (node_gone) {
    if (slot.process) return;
    lose_node(self, gone.node);
  }
  for (WorkerSlot& worker : supervisor.workers) {
    if (worker.worker && worker.worker.address() == down.source) worker = {.node = gone.node};
  }
  if (supervisor.frontend && supervisor.frontend.address() == down.source)
    supervisor.frontend = nullptr;
  recover(self, reason, !node_gone);
}

// ---- From outside ------------------------------------------------------------------------------

/// Opens the port for nodes and starts the processes of this host.
Result<void> start_nodes(Self self) {
  SupervisorState& supervisor = state(self);
  if (is_single_process(supervisor)) {
    NodeSlot& slot = supervisor.nodes.front();
    const NodeHandles handles = spawn_node(self->system(), supervisor.start.options, slot.config);
    slot.node = handles.node;
    slot.heart = handles.heart;
    slot.connected = true;
    watch(self, "node", caf::actor_cast<caf::strong_actor_ptr>(handles.node), 0);
    return {};
  }
  if (!self->system().has_middleman())
    return invalid_argument("several nodes need CAF's middleman: load it into the configuration");
  const TopologyOptions& topology = supervisor.start.options.topology;
  ASSIGN_OR_RETURN(auto tls, load_tls(topology));
  supervisor.network = std::make_unique<Network>(self->system(), std::move(tls));
  ASSIGN_OR_RETURN(supervisor.port, supervisor.network->publish(
                                        self, topology.supervisor_host,
                                        static_cast<std::uint16_t>(topology.supervisor_port)));
  if (topology.insecure) {
    log_warning("nodes of other hosts come without TLS: whoever can connect can do anything",
                kv("host", topology.supervisor_host), kv("port", supervisor.port));
  }
  log_info("waiting for nodes", kv("host", topology.supervisor_host), kv("port", supervisor.port),
           kv("nodes", supervisor.nodes.size()), kv("tls", !topology.tls_certificate.empty()));
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    if (supervisor.nodes[index].config.host.empty()) start_process(self, index);
  }
  return {};
}

/// In shared memory, where no two engines of a host meet under one name, or with workers on several
/// hosts at that of rank 0, on the port behind the Supervisor's.
std::string rendezvous_name(const SupervisorState& supervisor) {
  const TopologyOptions& topology = supervisor.start.options.topology;
  const auto host = [&](const WorkerSlot& slot) {
    const std::string& own = supervisor.nodes[slot.node].config.host;
    return own.empty() ? topology.supervisor_host : own;
  };
  const std::string first = host(supervisor.workers.front());
  const bool on_one_host = std::all_of(supervisor.workers.begin(), supervisor.workers.end(),
                                       [&](const WorkerSlot& slot) { return host(slot) == first; });
  if (!on_one_host) return "tcp:" + first + ":" + std::to_string(topology.supervisor_port + 1);
  std::random_device device;
  return "shm:troupe-" + std::to_string(getpid()) + "-" + std::to_string(std::uint32_t{device()});
}

/// Options and generation config first, as they are quick to be wrong.
Result<void> start(Self self) {
  SupervisorState& supervisor = state(self);
  const Options& options = supervisor.start.options;
  ASSIGN_OR_RETURN(const GenerationConfig generation, load_generation_config(options.model.model));
  ASSIGN_OR_RETURN(supervisor.sampling_defaults, sampling_defaults(generation, options.model));
  ASSIGN_OR_RETURN(Topology topology, options_topology(options));
  supervisor.workers.resize(static_cast<std::size_t>(topology.num_workers()));
  for (NodeConfig& node : topology.nodes) supervisor.nodes.push_back({.config = std::move(node)});
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    for (const std::int32_t rank : supervisor.nodes[index].config.workers)
      supervisor.workers[static_cast<std::size_t>(rank)].node = index;
  }
  if (supervisor.workers.size() > 1) supervisor.rendezvous = rendezvous_name(supervisor);
  return start_nodes(self);
}

void stop(Self self, double drain_timeout_s) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.frontend) return end_children(self);
  const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(drain_timeout_s) + kControlDeadline);
  ask(self, supervisor.frontend, deadline, Drain{drain_timeout_s})
      .then(
          [self](const Drained& drained) {
            log_info("drained", kv("aborted", drained.num_aborted));
            end_children(self);
          },
          [self](const caf::error& error) {
            log_warning("not drained", kv("error", to_text(error, self->system())));
            end_children(self);
          });
}

/// The share that all workers have loaded.
void on_progress(Self self, LoadProgress progress) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.start.on_progress || !supervisor.started.pending()) return;
  supervisor.workers.at(static_cast<std::size_t>(progress.rank)).fraction = progress.fraction;
  for (const WorkerSlot& slot : supervisor.workers)
    progress.fraction = std::min(progress.fraction, slot.fraction);
  supervisor.start.on_progress(progress);
}

SupervisorActor::behavior_type supervisor_behavior(Self self, const StartOptions& options,
                                                   const std::shared_ptr<EngineHandles>& handles) {
  state(self).start = options;
  state(self).handles = handles;
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  return {
      [self](const Start&) -> caf::result<Started> {
        state(self).started = self->make_response_promise<Started>();
        auto promise = state(self).started;
        check_nodes_later(self);
        if (auto begun = start(self); !begun.ok())
          refuse_start(self, begun.error());
        else
          advance(self);
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
      [self](const NodeExited& exited) { on_node_exited(self, exited); },
      [self](const CheckNodes&) { check_nodes(self); },
      [self](const ConfirmLoss& loss) {
        if (loss.incarnation == state(self).incarnation) recover(self, loss.reason, false);
      },
  };
}

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, const StartOptions& options,
                                 std::shared_ptr<EngineHandles> handles) {
  return system.spawn<caf::detached>(supervisor_behavior, options, std::move(handles));
}

}  // namespace troupe
