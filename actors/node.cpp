// The node: a process in which actors are placed. It starts what the Supervisor asks for, shows
// that its actors get to run, and ends them all when the Supervisor is gone.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>

#include "actors/engine_settings.hpp"
#include "actors/exceptions.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/kv_events/publisher.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kJoinDeadline = 60s;
/// A node that hears nothing waits longer than the Supervisor, which is to act first.
constexpr double kSilenceFactor = 2;
/// So long may the Supervisor take to end what depends on a process that is gone.
constexpr std::int64_t kLinkTimeout_ns = 2'000'000'000;
/// Where clients are connected, or their requests are kept, the other side has so many times as
/// long to leave first.
constexpr std::int64_t kFrontPatience = 3;
/// The Frontend outlives the RequestRouter: another one has so many times as long to come.
constexpr std::int64_t kRouterPatience = 10;

/// What the heart sees of the node, and the node of the heart.
struct Pulse {
  std::atomic<std::int64_t> heard_ns{steady_ns()};       ///< when the Supervisor was last heard
  std::vector<std::shared_ptr<WorkerProgress>> workers;  ///< group by group, rank by rank

  explicit Pulse(std::size_t num_workers) {
    for (std::size_t i = 0; i < num_workers; ++i)
      workers.push_back(std::make_shared<WorkerProgress>());
  }
};

struct HeartState {
  HeartState() = default;
  static inline const char* name = "heart";
};

/// In the pool, as the engine's actors are: if it does not get to run, neither do they.
HeartActor::behavior_type heart_behavior(HeartActor::stateful_pointer<HeartState> self,
                                         const std::shared_ptr<Pulse>& pulse) {
  return {[=](const Heartbeat&) {
    const std::int64_t now = steady_ns();
    pulse->heard_ns = now;
    HeartbeatReply reply;
    for (const auto& worker : pulse->workers) {
      const std::int64_t since = worker->busy_since_ns;
      if (since != 0)
        reply.busy_s = std::max(reply.busy_s, 1e-9 * static_cast<double>(now - since));
    }
    send(self, caf::actor_cast<SupervisorActor>(self->current_sender()), reply);
  }};
}

/// What the node runs of one group.
struct GroupActors {
  KVEventPublisherActor kv_event_publisher;               ///< null: nobody follows the cache
  std::array<ActorHandles, kNumRoles> actors;             ///< the latest of each role
  std::map<std::int32_t, caf::strong_actor_ptr> workers;  ///< by rank
  /// By rank: whom a Worker answers whose Executor is in another process of the host.
  std::map<std::int32_t, caf::strong_actor_ptr> remote_executors;
};

/// An actor of this node and one of another that it sends to. The Supervisor sees processes end,
/// but not that two of them have lost their connection: what they send is lost from then on.
struct PeerLink {
  caf::actor_addr actor;
  caf::actor_addr peer;
  std::int64_t patience = 1;  ///< times kLinkTimeout_ns
  std::int64_t lost_ns = 0;   ///< when the peer became unreachable; 0: it is not
};

struct NodeState {
  NodeState() = default;
  static inline const char* name = "node";

  Options options;
  NodeConfig config;
  HeartActor heart;
  SupervisorLink link;  ///< no Supervisor: it is in this process, and ends the node itself
  std::shared_ptr<Pulse> pulse;
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationConfig generation;
  SamplingDefaults sampling;
  std::map<std::uint32_t, GroupActors> groups;  ///< what all of them share is kept in group 0
  std::vector<PeerLink> links;                  ///< of what runs
  std::shared_ptr<std::atomic<bool>> released;  ///< told that nobody waits for its return
};

using Self = NodeActor::stateful_pointer<NodeState>;

template <class Handle>
caf::strong_actor_ptr pointer(const Handle& actor) {
  return caf::actor_cast<caf::strong_actor_ptr>(actor);
}

void end(const caf::strong_actor_ptr& actor) {
  caf::anon_send_exit(caf::actor_cast<caf::actor>(actor), caf::exit_reason::kill);
}

/// Whom an actor is to send to, by name.
class Peers {
 public:
  /// Errors: one that the role needs is not named.
  [[nodiscard]] static Result<Peers> of(const SpawnRole& what, const ActorHandles& handles) {
    Peers peers;
    for (std::size_t i = 0; i < std::min(what.peers.size(), handles.size()); ++i)
      peers.handles_[what.peers[i]].push_back(handles[i]);
    for (const Peer peer : spec_of(what.role).peers()) {
      if (peer != Peer::kRingNodes && !peers.handles_.contains(peer)) {
        return invalid_argument("the " + std::string(spec_of(what.role).name) + " lacks peer " +
                                std::to_string(static_cast<int>(peer)));
      }
    }
    return peers;
  }
  /// Pre: the role has such a peer.
  template <class Handle>
  [[nodiscard]] Handle one(Peer peer) const {
    return caf::actor_cast<Handle>(handles_.at(peer).front());
  }
  template <class Handle>
  [[nodiscard]] std::vector<Handle> all(Peer peer) const {
    std::vector<Handle> found;
    const auto handles = handles_.find(peer);
    if (handles == handles_.end()) return found;
    for (const caf::strong_actor_ptr& handle : handles->second)
      found.push_back(caf::actor_cast<Handle>(handle));
    return found;
  }

 private:
  std::map<Peer, ActorHandles> handles_;
};

/// Subscribers may connect while the model loads.
Result<void> start_kv_events(Self self, std::int32_t group) {
  NodeState& node = state(self);
  GroupActors& actors = node.groups[static_cast<std::uint32_t>(group)];
  if (actors.kv_event_publisher) return {};  // it outlives engines
  const EngineOptions& engine = node.options.engine;
  ASSIGN_OR_RETURN(const KVEventsConfig config, parse_kv_events_config(engine.kv_events_config));
  if (!config.publishes()) return {};
  if (!engine.enable_prefix_caching) {
    return invalid_argument("kv-events-config: there are no events without enable-prefix-caching",
                            "kv-events-config");
  }
  const BlockHasher hasher(parse_block_hash_algorithm(engine.prefix_caching_hash_algo).value(), 1);
  ASSIGN_OR_RETURN(std::shared_ptr<KVEventPublisher> core,
                   KVEventPublisher::start(config, {.int_block_hashes = config.use_int_block_hashes,
                                                    .hash_bytes = hasher.hash_size(),
                                                    .data_parallel_rank = group}));
  log_info("kv events", kv("group", group), kv("endpoint", core->endpoint()),
           kv("replay_endpoint", core->replay_endpoint()), kv("topic", config.topic));
  actors.kv_event_publisher = spawn_kv_event_publisher(self->system(), std::move(core));
  return {};
}

/// What is the same for every incarnation of the engine.
Result<void> prepare(Self self, bool read_tokenizer) {
  NodeState& node = state(self);
  const std::string& model = node.options.model.model;
  const bool tokens =
      node.config.has(Role::kInputProcessor) || node.config.has(Role::kOutputProcessor);
  if (read_tokenizer) {
    if (!tokens) return {};
    ASSIGN_OR_RETURN(node.tokenizer, Tokenizer::load(model));
    return {};
  }
  for (const std::int32_t group : node.config.groups) {
    if (node.config.has(Role::kKVCacheManager)) RETURN_IF_ERROR(start_kv_events(self, group));
  }
  if (tokens || node.config.has(Role::kFrontend)) {
    ASSIGN_OR_RETURN(node.generation, load_generation_config(model));
    ASSIGN_OR_RETURN(node.sampling, sampling_defaults(node.generation, node.options.model));
  }
  return {};
}

/// Behind the Executor itself, what stands for the workers of this host in other processes.
Result<ActorHandles> spawn_executor(Self self, const SpawnRole& what, const Peers& peers) {
  ParallelConfig parallel = parallel_config(state(self).options.engine);
  parallel.incarnation = what.incarnation;
  const auto& ring_ranks = what.ring_ranks;
  const auto all_workers = peers.all<StepRunnerActor>(Peer::kWorkers);
  const auto ring_nodes = peers.all<NodeActor>(Peer::kRingNodes);
  if (std::ssize(all_workers) != parallel.world_size() || ring_nodes.size() != ring_ranks.size()) {
    return invalid_argument("the executor has " + std::to_string(all_workers.size()) +
                            " workers and " + std::to_string(ring_nodes.size()) +
                            " nodes of rings, expected " + std::to_string(parallel.world_size()) +
                            " and " + std::to_string(ring_ranks.size()));
  }
  std::vector<StepRunnerActor> workers;
  for (std::int32_t rank = 0; rank < parallel.world_size(); ++rank) {
    if (std::find(ring_ranks.begin(), ring_ranks.end(), rank) == ring_ranks.end())
      workers.push_back(all_workers[static_cast<std::size_t>(rank)]);
  }
  ActorHandles handles;
  if (!ring_ranks.empty()) {
    ASSIGN_OR_RETURN(std::shared_ptr<StepRings> rings,
                     StepRings::create({.ranks = ring_ranks, .incarnation = what.incarnation}));
    for (std::size_t i = 0; i < ring_ranks.size(); ++i)
      send(self, ring_nodes[i], OpenRings{what.group, rings->worker(i)});
    workers.push_back(spawn_remote_workers(self->system(), std::move(rings)));
    handles.push_back(pointer(workers.back()));
  }
  handles.insert(handles.begin(),
                 pointer(troupe::spawn_executor(self->system(), std::move(workers), parallel)));
  return handles;
}

/// A Worker whose rings cannot be opened would never get a step: it ends, and says why.
void take_rings(Self self, const OpenRings& open) {
  const WorkerRings& rings = open.rings;
  GroupActors& group = state(self).groups[open.group];
  const auto worker = group.workers.find(rings.rank);
  if (worker == group.workers.end()) return;  // of an engine before it
  caf::strong_actor_ptr& before = group.remote_executors[rings.rank];
  if (before) end(before);
  auto executor =
      spawn_remote_executor(self->system(), rings, caf::actor_cast<WorkerActor>(worker->second));
  if (executor.ok()) {
    before = pointer(*executor);
  } else {
    post_exit(caf::actor_cast<caf::actor>(worker->second),
              exit_reason_of("a worker has no rings: " + executor.error().message));
  }
}

Result<ActorHandles> spawn_role(Self self, const SpawnRole& what, const ActorHandles& handles) {
  ASSIGN_OR_RETURN(const Peers peers, Peers::of(what, handles));
  NodeState& node = state(self);
  const Options& options = node.options;
  caf::actor_system& system = self->system();
  switch (what.role) {
    case Role::kFrontend: {
      ASSIGN_OR_RETURN(ServerConfig config,
                       server_config(options, node.sampling, what.model, what.cache));
      if (what.port != 0) config.options.port = what.port;
      return ActorHandles{pointer(
          spawn_frontend(system, config, peers.one<RequestRouterActor>(Peer::kRequestRouter)))};
    }
    case Role::kRequestRouter:
      return ActorHandles{pointer(spawn_request_router(
          system, {.num_groups = static_cast<std::size_t>(options.engine.data_parallel_size),
                   .seed = first_seed(options.model),
                   .life = what.life}))};
    case Role::kInputProcessor: {
      ASSIGN_OR_RETURN(const auto core,
                       make_input_processor(options, what.model, node.generation, node.tokenizer));
      return ActorHandles{pointer(spawn_input_processor(
          system, core, static_cast<std::size_t>(options.engine.num_input_processors),
          peers.one<OutputProcessorActor>(Peer::kOutputProcessor),
          peers.one<SchedulerActor>(Peer::kScheduler)))};
    }
    case Role::kOutputProcessor:
      return ActorHandles{pointer(spawn_output_processor(system, node.tokenizer))};
    case Role::kScheduler: {
      SchedulerConfig config = scheduler_config(options.engine, what.model, what.cache);
      config.incarnation = what.incarnation;
      config.engine_index = what.group;
      return ActorHandles{pointer(spawn_scheduler(
          system, config,
          {.kv_cache_manager = peers.one<KVCacheManagerActor>(Peer::kKVCacheManager),
           .encoder_cache_manager = peers.one<EncoderCacheManagerActor>(Peer::kEncoderCacheManager),
           .executor = peers.one<ExecutorActor>(Peer::kExecutor),
           .output_processor = peers.one<OutputProcessorActor>(Peer::kOutputProcessor)}))};
    }
    case Role::kKVCacheManager: {
      KVCacheSettings settings = kv_cache_settings(options.engine, what.model, what.cache);
      const KVEventPublisherActor& publisher = node.groups[what.group].kv_event_publisher;
      settings.events = static_cast<bool>(publisher);
      RETURN_IF_ERROR(settings.check());
      // What an earlier incarnation had stored is gone.
      if (settings.events && what.incarnation > 1)
        send(self, publisher, KVEventBatch{wall_seconds(), {AllBlocksCleared{}}});
      return ActorHandles{pointer(spawn_kv_cache_manager(system, settings, publisher))};
    }
    case Role::kEncoderCacheManager:
      return ActorHandles{
          pointer(spawn_encoder_cache_manager(system, encoder_cache_settings(options.engine)))};
    case Role::kExecutor:
      return spawn_executor(self, what, peers);
  }
  return invalid_argument("unknown role " + std::to_string(static_cast<int>(what.role)));
}

void end_all(Self self) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    for (const ActorHandles& role : group.actors) std::for_each(role.begin(), role.end(), end);
    for (const auto& [rank, executor] : group.remote_executors) end(executor);
    for (const auto& [rank, worker] : group.workers) end(worker);
    if (group.kv_event_publisher) end(pointer(group.kv_event_publisher));
  }
  end(pointer(node.heart));
  self->quit();
}

/// What ends is no longer waited for; what cannot be reached has a while to be ended.
void on_down(Self self, const caf::down_msg& down) {
  NodeState& node = state(self);
  if (node.link.supervisor && node.link.supervisor.address() == down.source) {
    log_warning("the supervisor is gone", kv("node", node.config.name),
                kv("reason", to_text(down.reason, self->system())));
    return end_all(self);
  }
  std::erase_if(node.links, [&](const PeerLink& link) { return link.actor == down.source; });
  if (down.reason != caf::exit_reason::remote_link_unreachable) return;
  for (PeerLink& link : node.links) {
    if (link.peer == down.source) link.lost_ns = steady_ns();
  }
}

void watch_links(Self self, const ActorHandles& actors, const ActorHandles& peers,
                 std::int64_t patience) {
  for (const caf::strong_actor_ptr& peer : peers) {
    if (!peer || peer->node() == self->node()) continue;
    self->monitor(caf::actor_cast<caf::actor>(peer));
    for (const caf::strong_actor_ptr& actor : actors) {
      self->monitor(caf::actor_cast<caf::actor>(actor));
      state(self).links.push_back({caf::actor_cast<caf::actor_addr>(actor),
                                   caf::actor_cast<caf::actor_addr>(peer), patience});
    }
  }
}

std::int64_t patience_for(const NodeState& node, Role role) {
  if (role == Role::kFrontend) return kRouterPatience;
  const bool is_front = node.config.has(Role::kFrontend) || node.config.has(Role::kRequestRouter);
  return is_front ? kFrontPatience : 1;
}

/// The node's Frontend goes on with another RequestRouter.
void change_router(Self self, const ActorHandles& router) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    const ActorHandles& frontend = group.actors[static_cast<std::size_t>(Role::kFrontend)];
    if (frontend.empty()) continue;
    const auto address = caf::actor_cast<caf::actor_addr>(frontend.front());
    std::erase_if(node.links, [&](const PeerLink& link) { return link.actor == address; });
    watch_links(self, frontend, router, kRouterPatience);
    send(self, caf::actor_cast<FrontendActor>(frontend.front()), RouterReady{}, router);
  }
}

/// Why this node is of no use any more; empty: it is.
std::string cause_to_leave(const NodeState& node) {
  const std::int64_t now = steady_ns();
  const double silent_s = 1e-9 * static_cast<double>(now - node.pulse->heard_ns.load());
  if (silent_s >= kSilenceFactor * node.options.topology.node_timeout_s)
    return "the supervisor has been silent for " + std::to_string(silent_s) + " s";
  const bool cut_off = std::any_of(node.links.begin(), node.links.end(), [&](const PeerLink& link) {
    return link.lost_ns != 0 && now - link.lost_ns >= link.patience * kLinkTimeout_ns;
  });
  return cut_off ? "the connection with another node is lost" : "";
}

void check_later(Self self) {
  const NodeActor me = self;
  send_after(self, 1s, me, CheckNodes{});
}

void join(Self self) {
  NodeState& node = state(self);
  self->monitor(node.link.supervisor);
  const auto give_up = [self](const std::string& why) {
    log_error("the node cannot join", kv("node", state(self).config.name), kv("reason", why));
    end_all(self);
  };
  const NodeActor me = self;
  ask(self, node.link.supervisor, kJoinDeadline,
      JoinNode{.version = TROUPE_VERSION,
               .name = node.config.name,
               .pid = getpid(),
               .port = node.link.port},
      ActorHandles{pointer(me), pointer(node.heart)})
      .then(
          [self, give_up](const NodeAccepted& accepted) {
            if (accepted.error) return give_up(accepted.error->message);
            NodeConnected connected;
            for (const NodeAddress& address : accepted.peers) {
              auto done = state(self).link.network->connect(address.host, address.port);
              if (!done.ok() && !connected.error) connected.error = done.error();
            }
            send(self, state(self).link.supervisor, std::move(connected));
            state(self).pulse->heard_ns = steady_ns();
            check_later(self);
          },
          [self, give_up](const caf::error& error) { give_up(to_text(error, self->system())); });
}

NodeActor::behavior_type node_behavior(Self self, const Options& options, const NodeConfig& config,
                                       const SupervisorLink& link, const HeartActor& heart,
                                       const std::shared_ptr<Pulse>& pulse,
                                       const std::shared_ptr<std::atomic<bool>>& released) {
  NodeState& node = state(self);
  node.options = options;
  node.config = config;
  node.link = link;
  node.pulse = pulse;
  node.heart = heart;
  node.released = released;
  self->set_exit_handler([self](const caf::exit_msg&) { end_all(self); });
  self->set_exception_handler([self](std::exception_ptr& exception) -> caf::error {
    const std::string reason = describe(exception);
    log_error("the node ends", kv("node", state(self).config.name), kv("reason", reason));
    end_all(self);
    return exit_reason_of(reason);
  });
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  if (link.supervisor) join(self);
  return {
      [self](const PrepareNode& how) -> Status {
        auto prepared = prepare(self, how.read_tokenizer);
        return {prepared.ok() ? std::nullopt : std::optional(prepared.error())};
      },
      [self](const SpawnWorker& what) -> caf::result<Status, ActorHandles> {
        NodeState& node = state(self);
        const auto& ranks = node.config.workers;
        const auto& groups = node.config.groups;
        const auto rank = std::find(ranks.begin(), ranks.end(), what.rank);
        const auto group =
            std::find(groups.begin(), groups.end(), static_cast<std::int32_t>(what.group));
        if (rank == ranks.end() || group == groups.end()) {
          return {Status{invalid_argument("worker " + std::to_string(what.rank) + " of group " +
                                          std::to_string(what.group) + " has no place in '" +
                                          node.config.name + "'")},
                  ActorHandles{}};
        }
        const auto place = (group - groups.begin()) * std::ssize(ranks) + (rank - ranks.begin());
        const auto progress = node.pulse->workers[static_cast<std::size_t>(place)];
        progress->busy_since_ns = 0;
        caf::strong_actor_ptr& worker = node.groups[what.group].workers[what.rank];
        if (worker) end(worker);
        worker = pointer(spawn_worker(
            self->system(), what.rank, progress,
            CrashToken{node.options.server.dev_crash_token, node.options.server.dev_crash_signal}));
        return {Status{}, ActorHandles{worker}};
      },
      [self](const SpawnRole& what,
             const ActorHandles& peers) -> caf::result<Status, ActorHandles> {
        ActorHandles& actors =
            state(self).groups[what.group].actors.at(static_cast<std::size_t>(what.role));
        std::for_each(actors.begin(), actors.end(), end);
        actors.clear();
        auto spawned = spawn_role(self, what, peers);
        if (!spawned.ok()) return {Status{spawned.error()}, ActorHandles{}};
        actors = std::move(spawned).value();
        watch_links(self, actors, peers, patience_for(state(self), what.role));
        return {Status{}, actors};
      },
      [self](const OpenRings& open) { take_rings(self, open); },
      [self](const RouterReady&, const ActorHandles& router) { change_router(self, router); },
      [self](const CheckNodes&) {
        const std::string cause = cause_to_leave(state(self));
        if (cause.empty()) return check_later(self);
        log_warning("the node leaves", kv("node", state(self).config.name), kv("cause", cause));
        end_all(self);
      },
      [self](const LeaveNode& leave) {
        *state(self).released = leave.for_good;
        end_all(self);
      },
  };
}

}  // namespace

NodeHandles spawn_node(caf::actor_system& system, const Options& options, const NodeConfig& config,
                       const SupervisorLink& link) {
  auto pulse = std::make_shared<Pulse>(config.workers.size() * config.groups.size());
  auto released = std::make_shared<std::atomic<bool>>(false);
  NodeHandles handles;
  handles.released = released;
  handles.heart = system.spawn(heart_behavior, pulse);
  handles.node = system.spawn<caf::detached>(node_behavior, options, config, link, handles.heart,
                                             pulse, released);
  return handles;
}

}  // namespace troupe
