// The node: a process in which actors are placed. It starts what the Supervisor asks for, shows
// that its actors get to run, and ends them all when the Supervisor is gone.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>

#include "actors/deadlines.hpp"
#include "actors/engine_settings.hpp"
#include "actors/exceptions.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"
#include "runtime/kv_events/publisher.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/structured_output/grammar_cache.hpp"
#include "runtime/structured_output/grammar_pool.hpp"
#include "runtime/supervision/node_watch.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kJoinDeadline = 60s;
/// Where clients are connected, or their requests are kept, the other side of a lost connection has
/// so many times as long to leave first.
constexpr double kFrontPatience = 3;
/// The Frontend outlives the RequestRouter: another one has so many times as long to come.
constexpr double kRouterPatience = 10;

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

/// The latest actors of a role.
struct RoleActors {
  ActorHandles handles;
  std::uint32_t incarnation = 0;  ///< of the group
  std::uint64_t life = 0;         ///< of the RequestRouter
};

/// What the node runs of one group.
struct GroupActors {
  KVEventPublisherActor kv_event_publisher;  ///< null: nobody follows the cache
  std::array<RoleActors, kNumRoles> actors;
  std::map<std::int32_t, caf::strong_actor_ptr> workers;  ///< by rank
  /// By rank: whom a Worker answers whose Executor is in another process of the host.
  std::map<std::int32_t, caf::strong_actor_ptr> remote_executors;
  std::optional<GroupRecord> record;  ///< for the next Supervisor
  /// The latest Scheduler's: what it shares with others of this process stays for the next one.
  std::shared_ptr<ECConnector> ec_connector;
};

/// Numbers of actors, for the core.
class ActorNumbers {
 public:
  supervision::ActorId of(const caf::actor_addr& actor) {
    return numbers_.try_emplace(actor, numbers_.size() + 1).first->second;
  }

 private:
  std::map<caf::actor_addr, supervision::ActorId> numbers_;
};

struct NodeState {
  NodeState() = default;
  static inline const char* name = "node";

  Options options;
  NodeConfig config;
  HeartActor heart;
  SupervisorLink link;  ///< without a network the Supervisor is here, and ends the node itself
  std::unique_ptr<supervision::NodeWatch> watch;
  ActorNumbers numbers;
  bool is_member = false;   ///< some Supervisor has accepted it
  std::uint64_t epoch = 0;  ///< of the Supervisor that has accepted the node last
  bool prepared = false;    ///< but for the tokenizer
  bool has_tokenizer = false;
  std::shared_ptr<Pulse> pulse;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<GrammarCache> grammars;  ///< of all groups; null: none was needed so far
  std::shared_ptr<GrammarPool> grammar_pool;
  GenerationConfig generation;
  SamplingDefaults sampling;
  AnswerDefaults answers;
  std::map<std::uint32_t, GroupActors> groups;  ///< what all of them share is kept in group 0
  EncoderRouterActor encoder_router;  ///< null: the topology has no encoders, or they are not used
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
  const bool tokens = node.config.has(Role::kInputProcessor) ||
                      node.config.has(Role::kOutputProcessor) || node.config.has(Role::kScheduler);
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
    ASSIGN_OR_RETURN(node.answers, answer_defaults(node.options));
  }
  return {};
}

/// Behind the Executor itself, what stands for the workers of this host in other processes.
Result<ActorHandles> spawn_executor(Self self, const SpawnRole& what, const Peers& peers) {
  ParallelConfig parallel = parallel_config(state(self).options.engine);
  parallel.incarnation = what.incarnation;
  const auto& ring_ranks = what.ring_ranks;
  const auto all_workers = peers.all<WorkerActor>(Peer::kWorkers);
  const auto ring_nodes = peers.all<NodeActor>(Peer::kRingNodes);
  if (std::ssize(all_workers) != parallel.world_size() || ring_nodes.size() != ring_ranks.size()) {
    return invalid_argument("the executor has " + std::to_string(all_workers.size()) +
                            " workers and " + std::to_string(ring_nodes.size()) +
                            " nodes of rings, expected " + std::to_string(parallel.world_size()) +
                            " and " + std::to_string(ring_ranks.size()));
  }
  std::vector<WorkerActor> workers;
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

/// InputProcessors and Schedulers of a node share what they compile.
const std::shared_ptr<GrammarCache>& grammars_of(NodeState& node, const ModelLoaded& model) {
  if (node.grammars == nullptr) {
    node.grammars =
        std::make_shared<GrammarCache>(node.tokenizer, static_cast<std::size_t>(model.vocab_size));
  }
  return node.grammars;
}

const std::shared_ptr<GrammarPool>& grammar_pool_of(NodeState& node, const ModelLoaded& model) {
  if (node.grammar_pool == nullptr)
    node.grammar_pool = std::make_shared<GrammarPool>(grammars_of(node, model));
  return node.grammar_pool;
}

/// Null: no encoder runs apart from the workers.
std::shared_ptr<RemoteOutputs> remote_outputs(Self self) {
  const EncoderRouterActor& router = state(self).encoder_router;
  return router ? make_remote_outputs(self->system(), router) : nullptr;
}

/// Null: nothing is transferred.
Result<std::shared_ptr<ECConnector>> make_ec_connector(Self self, const ModelLoaded& model) {
  ASSIGN_OR_RETURN(
      ConnectorConfig config,
      parse_connector_config(ConnectorKind::kEC, ec_transfer_config(state(self).options)));
  if (!config.is_enabled()) return std::shared_ptr<ECConnector>();
  if (model.max_item_embeds == 0) {
    log_warning("ec-transfer-config has no effect: the model has no encoder",
                kv("architecture", model.architecture));
    return std::shared_ptr<ECConnector>();
  }
  ASSIGN_OR_RETURN(const ECConnectorKind* const kind, find_ec_connector(config));
  return kind->create({std::move(config), model.encoder_key, remote_outputs(self)});
}

/// Null: nothing is transferred.
Result<std::shared_ptr<KVConnector>> make_kv_connector(const NodeState& node,
                                                       const SpawnRole& what) {
  const Options& options = node.options;
  ASSIGN_OR_RETURN(ConnectorConfig config,
                   parse_connector_config(ConnectorKind::kKV, kv_transfer_config(options.engine)));
  if (!config.is_enabled()) return std::shared_ptr<KVConnector>();
  if (what.model.pooler.whole_texts)
    return Error{
        ErrorCode::kUnsupported,
        "kv-transfer-config: the texts of this model are computed in one step, no block of "
        "them is used again",
        "kv-transfer-config"};
  ASSIGN_OR_RETURN(const KVConnectorKind* const kind, find_kv_connector(config));
  const ParallelConfig parallel = parallel_config(options.engine);
  ASSIGN_OR_RETURN(std::string identity,
                   model_identity(worker_options(options, parallel), what.model));
  return kind->create({.config = std::move(config),
                       .model_identity = std::move(identity),
                       .parallel = parallel,
                       .cache = what.cache,
                       .settings = kv_cache_settings(options.engine, what.model, what.cache),
                       .encode = [tokenizer = node.tokenizer](const std::string& text) {
                         return tokenizer->encode(text, /*add_special_tokens=*/false);
                       }});
}

/// Errors: of the files of the credentials.
Result<WorkerTransfer> worker_transfer(const NodeState& node) {
  const Options& options = node.options;
  WorkerTransfer transfer{.config = kv_transfer_config(options.engine)};
  if (transfer.config.empty()) return transfer;
  const TopologyOptions& security = options.topology;
  if (security.insecure || !security.tls_certificate.empty() ||
      !security.cluster_secret_file.empty()) {
    ASSIGN_OR_RETURN(transfer.credentials, load_credentials(security, {}));
  }
  ASSIGN_OR_RETURN(const Topology topology, options_topology(options));
  if (topology.spans_hosts())
    transfer.host = node.config.host.empty() ? security.supervisor_host : node.config.host;
  return transfer;
}

Result<ActorHandles> spawn_role(Self self, const SpawnRole& what, const ActorHandles& handles) {
  ASSIGN_OR_RETURN(const Peers peers, Peers::of(what, handles));
  NodeState& node = state(self);
  const Options& options = node.options;
  caf::actor_system& system = self->system();
  switch (what.role) {
    case Role::kFrontend: {
      ASSIGN_OR_RETURN(ServerConfig config,
                       server_config(options, node.sampling, node.answers, what.model, what.cache));
      if (what.port != 0) {
        config.options.port = what.port;
        config.takes_over = true;
      }
      return ActorHandles{pointer(
          spawn_frontend(system, config, peers.one<RequestRouterActor>(Peer::kRequestRouter)))};
    }
    case Role::kRequestRouter: {
      ASSIGN_OR_RETURN(std::vector<GroupRole> roles, group_roles(options.engine));
      return ActorHandles{pointer(
          spawn_request_router(system, {.roles = std::move(roles),
                                        .min_split_tokens = options.engine.disaggregation_threshold,
                                        .seed = first_seed(options.model),
                                        .life = what.life,
                                        .enable_adapters = options.engine.enable_lora,
                                        .adapter_directory = options.engine.lora_directory}))};
    }
    case Role::kInputProcessor: {
      ASSIGN_OR_RETURN(const auto core,
                       make_input_processor(options, what.model, node.generation, node.tokenizer,
                                            grammars_of(node, what.model)));
      return ActorHandles{pointer(spawn_input_processor(
          system, core, static_cast<std::size_t>(options.engine.num_input_processors),
          peers.one<OutputProcessorActor>(Peer::kOutputProcessor),
          peers.one<SchedulerActor>(Peer::kScheduler), node.encoder_router))};
    }
    case Role::kOutputProcessor:
      return ActorHandles{pointer(spawn_output_processor(system, node.tokenizer))};
    case Role::kScheduler: {
      SchedulerConfig config = scheduler_config(options.engine, what.model, what.cache);
      config.incarnation = what.incarnation;
      config.engine_index = what.group;
      ASSIGN_OR_RETURN(std::shared_ptr<ECConnector> ec_connector,
                       make_ec_connector(self, what.model));
      node.groups[what.group].ec_connector = ec_connector;
      ASSIGN_OR_RETURN(std::shared_ptr<KVConnector> kv_connector, make_kv_connector(node, what));
      ASSIGN_OR_RETURN(std::shared_ptr<ItemCache> item_cache,
                       make_engine_item_cache(options, what.model));
      return ActorHandles{pointer(spawn_scheduler(
          system, config,
          {.kv_cache_manager = peers.one<KVCacheManagerActor>(Peer::kKVCacheManager),
           .encoder_cache_manager = peers.one<EncoderCacheManagerActor>(Peer::kEncoderCacheManager),
           .executor = peers.one<ExecutorActor>(Peer::kExecutor),
           .output_processor = peers.one<OutputProcessorActor>(Peer::kOutputProcessor),
           .kv_connector = std::move(kv_connector),
           .ec_connector = std::move(ec_connector),
           .grammar_compiler = grammar_pool_of(node, what.model),
           .item_cache = std::move(item_cache)}))};
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
      return ActorHandles{pointer(
          spawn_encoder_cache_manager(system, encoder_cache_settings(options.engine, what.model)))};
    case Role::kExecutor:
      return spawn_executor(self, what, peers);
    case Role::kEncoder:
      break;  // see start_encoder
  }
  return invalid_argument("unknown role " + std::to_string(static_cast<int>(what.role)));
}

/// The answer to SpawnRole comes when the encoder has been loaded.
caf::result<Status, ActorHandles> start_encoder(Self self, const SpawnRole& what) {
  NodeState& node = state(self);
  auto connector = parse_connector_config(ConnectorKind::kEC, ec_transfer_config(node.options));
  if (!connector.ok()) return {Status{connector.error()}, ActorHandles{}};
  EncoderConfig config{.worker = worker_options(node.options, {}),
                       .connector = std::move(connector).value()};
  if (!node.config.device.empty()) config.worker.device = node.config.device;
  const EncoderHandles spawned = spawn_encoder(self->system(), config, node.pulse->workers.back());
  auto promise = self->make_response_promise<Status, ActorHandles>();
  ask(self, spawned.worker, kLoadDeadline, LoadEncoder{})
      .then(
          [=](const Status& status) mutable {
            if (status.error) {
              end(pointer(spawned.encoder));
              promise.deliver(status, ActorHandles{});
              return;
            }
            RoleActors& actors =
                state(self).groups[what.group].actors.at(static_cast<std::size_t>(what.role));
            std::for_each(actors.handles.begin(), actors.handles.end(), end);
            actors = {{pointer(spawned.encoder)}, what.incarnation, what.life};
            promise.deliver(Status{}, actors.handles);
          },
          [=](const caf::error& error) mutable { promise.deliver(error); });
  return promise;
}

void end_all(Self self) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    for (const RoleActors& role : group.actors)
      std::for_each(role.handles.begin(), role.handles.end(), end);
    for (const auto& [rank, executor] : group.remote_executors) end(executor);
    for (const auto& [rank, worker] : group.workers) end(worker);
    if (group.kv_event_publisher) end(pointer(group.kv_event_publisher));
  }
  if (node.encoder_router) end(pointer(node.encoder_router));
  end(pointer(node.heart));
  self->quit();
}

void check_later(Self self, double seconds) {
  const NodeActor me = self;
  send_after(self, from_seconds(seconds), me, CheckNodes{});
}

/// The Supervisor's process has died, or its connection has ended.
void lose_supervisor(Self self, const std::string& reason) {
  NodeState& node = state(self);
  log_warning("the supervisor is gone", kv("node", node.config.name), kv("reason", reason));
  node.link.supervisor = nullptr;
  node.watch->supervisor_lost(now_seconds());
  if (!node.is_member || node.options.topology.supervisor_timeout_s == 0) end_all(self);
}

/// What ends is no longer waited for; what cannot be reached has a while to be ended.
void on_down(Self self, const caf::down_msg& down) {
  NodeState& node = state(self);
  if (node.link.supervisor && node.link.supervisor.address() == down.source) {
    return lose_supervisor(self, to_text(down.reason, self->system()));
  }
  const supervision::ActorId actor = node.numbers.of(down.source);
  node.watch->forget_links(actor);
  if (down.reason == caf::exit_reason::remote_link_unreachable)
    node.watch->peer_unreachable(now_seconds(), actor);
}

void watch_links(Self self, const ActorHandles& actors, const ActorHandles& peers,
                 double patience) {
  NodeState& node = state(self);
  const auto number_of = [&](const caf::strong_actor_ptr& actor) {
    return node.numbers.of(caf::actor_cast<caf::actor_addr>(actor));
  };
  for (const caf::strong_actor_ptr& peer : peers) {
    if (!peer || peer->node() == self->node()) continue;
    self->monitor(caf::actor_cast<caf::actor>(peer));
    for (const caf::strong_actor_ptr& actor : actors) {
      self->monitor(caf::actor_cast<caf::actor>(actor));
      node.watch->add_link(number_of(actor), number_of(peer), patience);
    }
  }
}

double patience_for(const NodeState& node, Role role) {
  if (role == Role::kFrontend) return kRouterPatience;
  const bool is_front = node.config.has(Role::kFrontend) || node.config.has(Role::kRequestRouter);
  return is_front ? kFrontPatience : 1;
}

/// The node's Frontend goes on with another RequestRouter.
void change_router(Self self, const ActorHandles& router) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    const ActorHandles& frontend = group.actors[static_cast<std::size_t>(Role::kFrontend)].handles;
    if (frontend.empty()) continue;
    node.watch->forget_links(node.numbers.of(caf::actor_cast<caf::actor_addr>(frontend.front())));
    watch_links(self, frontend, router, kRouterPatience);
    send(self, caf::actor_cast<FrontendActor>(frontend.front()), RouterReady{}, router);
  }
}

// ---- The Supervisor, and the next one ----------------------------------------------------------

/// What runs here, and what is known of it; `handles` get those of the actors.
JoinNode inventory(const NodeState& node, ActorHandles& handles) {
  JoinNode join{.version = TROUPE_VERSION,
                .name = node.config.name,
                .pid = getpid(),
                .port = node.link.port,
                .epoch = node.epoch,
                .prepared = node.prepared,
                .has_tokenizer = node.has_tokenizer};
  for (const auto& [number, group] : node.groups) {
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const RoleActors& actors = group.actors[role];
      for (const caf::strong_actor_ptr& handle : actors.handles) {
        join.actors.push_back({.role = static_cast<Role>(role),
                               .group = number,
                               .incarnation = actors.incarnation,
                               .life = actors.life});
        handles.push_back(handle);
      }
    }
    for (const auto& [rank, worker] : group.workers) {
      join.actors.push_back({.is_worker = true, .group = number, .rank = rank});
      handles.push_back(worker);
    }
    if (group.record) join.groups.push_back(*group.record);
  }
  return join;
}

void on_accepted(Self self, const NodeAccepted& accepted) {
  NodeState& node = state(self);
  NodeConnected connected;
  for (const NodeAddress& address : accepted.peers) {
    auto done = node.link.network->connect(address.host, address.port);
    if (!done.ok() && !connected.error) connected.error = done.error();
  }
  send(self, node.link.supervisor, std::move(connected));
  if (!node.watch->has_supervisor())
    log_info("joined another supervisor", kv("node", node.config.name));
  node.epoch = accepted.epoch;
  node.pulse->heard_ns = steady_ns();
  node.watch->joined(now_seconds());
  if (!std::exchange(node.is_member, true)) check_later(self, 0);
}

void join(Self self) {
  NodeState& node = state(self);
  self->monitor(node.link.supervisor);
  const SupervisorActor supervisor = node.link.supervisor;
  const auto fail = [self](const std::string& why, bool for_now) {
    NodeState& node = state(self);
    log_error("the node cannot join", kv("node", node.config.name), kv("reason", why));
    if (!node.is_member || !for_now) return end_all(self);
    node.link.supervisor = nullptr;  // what runs here goes on
  };
  const NodeActor me = self;
  ActorHandles handles = {pointer(me), pointer(node.heart)};
  JoinNode question = inventory(node, handles);
  ask(self, node.link.supervisor, kJoinDeadline, std::move(question), std::move(handles))
      .then(
          [self, fail, supervisor](const NodeAccepted& accepted) {
            if (state(self).link.supervisor != supervisor) return;
            if (!accepted.error) return on_accepted(self, accepted);
            fail(accepted.error->message, accepted.error->code == ErrorCode::kUnavailable);
          },
          [self, fail, supervisor](const caf::error& error) {
            if (state(self).link.supervisor == supervisor)
              fail(to_text(error, self->system()), /*for_now=*/true);
          });
}

/// Another Supervisor at the same address, if there is one.
void find_supervisor(Self self) {
  NodeState& node = state(self);
  const TopologyOptions& topology = node.options.topology;
  auto found = node.link.network->find_supervisor(
      topology.supervisor_host, static_cast<std::uint16_t>(topology.supervisor_port));
  if (!found.ok()) return log_debug("no supervisor", kv("reason", found.error().message));
  node.link.supervisor = std::move(found).value();
  join(self);
}

void check(Self self) {
  using Action = supervision::NodeWatch::Action;
  NodeState& node = state(self);
  const bool joins = !node.watch->has_supervisor() && node.link.supervisor;
  if (joins) return check_later(self, 1);
  const auto decision =
      node.watch->check(now_seconds(), 1e-9 * static_cast<double>(node.pulse->heard_ns.load()));
  if (decision.action == Action::kLeave) {
    log_warning("the node leaves", kv("node", node.config.name), kv("cause", decision.reason));
    return end_all(self);
  }
  if (decision.action == Action::kJoin) find_supervisor(self);
  check_later(self, decision.next_check_s);
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
  if (has_encoders(options) && !config.serves_all_groups())
    node.encoder_router = spawn_encoder_router(self->system());
  node.watch = std::make_unique<supervision::NodeWatch>(supervision::NodeLimits{
      options.topology.node_timeout_s, options.topology.supervisor_timeout_s});
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
        if (prepared.ok())
          (how.read_tokenizer ? state(self).has_tokenizer : state(self).prepared) = true;
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
        auto transfer = worker_transfer(node);
        if (!transfer.ok()) return {Status{transfer.error()}, ActorHandles{}};
        transfer->remote_outputs = remote_outputs(self);
        worker = pointer(spawn_worker(
            self->system(), what.rank, progress,
            CrashToken{node.options.server.dev_crash_token, node.options.server.dev_crash_signal},
            std::move(*transfer)));
        return {Status{}, ActorHandles{worker}};
      },
      [self](const SpawnRole& what,
             const ActorHandles& peers) -> caf::result<Status, ActorHandles> {
        if (what.role == Role::kEncoder) return start_encoder(self, what);
        GroupActors& group = state(self).groups[what.group];
        RoleActors& actors = group.actors.at(static_cast<std::size_t>(what.role));
        std::for_each(actors.handles.begin(), actors.handles.end(), end);
        actors = {};
        auto spawned = spawn_role(self, what, peers);
        if (!spawned.ok()) return {Status{spawned.error()}, ActorHandles{}};
        actors = {std::move(spawned).value(), what.incarnation, what.life};
        watch_links(self, actors.handles, peers, patience_for(state(self), what.role));
        return {Status{}, actors.handles};
      },
      [self](const OpenRings& open) { take_rings(self, open); },
      [self](const RouterReady&, const ActorHandles& router) { change_router(self, router); },
      [self](const EncodersChanged& changed, const ActorHandles& encoders) {
        if (state(self).encoder_router) send(self, state(self).encoder_router, changed, encoders);
      },
      [self](const GroupRecord& record) { state(self).groups[record.group].record = record; },
      [self](const CheckNodes&) { check(self); },
      [self](const LeaveNode& leave) {
        *state(self).released = leave.for_good;
        end_all(self);
      },
  };
}

}  // namespace

NodeHandles spawn_node(caf::actor_system& system, const Options& options, const NodeConfig& config,
                       const SupervisorLink& link) {
  const std::size_t num_encoders = config.has(Role::kEncoder) ? 1 : 0;  // the last one
  auto pulse = std::make_shared<Pulse>(config.workers.size() * config.groups.size() + num_encoders);
  auto released = std::make_shared<std::atomic<bool>>(false);
  NodeHandles handles;
  handles.released = released;
  handles.heart = system.spawn(heart_behavior, pulse);
  handles.node = system.spawn<caf::detached>(node_behavior, options, config, link, handles.heart,
                                             pulse, released);
  return handles;
}

}  // namespace troupe
