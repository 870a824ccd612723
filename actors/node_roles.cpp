// Starting the actors of a node's roles, but for what computes (node_workers.cpp).
#include <algorithm>

#include "actors/node_state.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/kv_events/publisher.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/scheduler/decision_log.hpp"
#include "runtime/structured_output/grammar_cache.hpp"
#include "runtime/structured_output/grammar_pool.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe::node {
namespace {

/// The peers of a role, by name.
class Peers {
 public:
  /// Errors: a peer that the role needs is missing.
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
  /// Pre: the role has this peer.
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

/// Early, so that subscribers can connect while the model loads.
Result<void> start_kv_events(Self self, std::int32_t group) {
  NodeState& node = state(self);
  GroupActors& actors = node.groups[static_cast<std::uint32_t>(group)];
  if (actors.kv_event_publisher) return {};  // outlives engines
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

/// Returns the Executor, then the proxy of the workers in other processes of this host, if any.
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

/// The InputProcessors and Schedulers of a node share compiled grammars.
const std::shared_ptr<GrammarCache>& grammars_of(NodeState& node, const ModelLoaded& model) {
  if (node.grammars == nullptr) {
    node.grammars =
        std::make_shared<GrammarCache>(node.tokenizer, static_cast<std::size_t>(model.vocab_size));
  }
  return node.grammars;
}

const std::shared_ptr<GrammarPool>& grammar_pool_of(NodeState& node, const ModelLoaded& model) {
  if (node.grammar_pool == nullptr)
    node.grammar_pool = std::make_shared<GrammarPool>(grammars_of(node, model),
                                                      node.options.engine.enable_jump_forward);
  return node.grammar_pool;
}

/// Null without a connector.
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

/// Null: none is asked for.
Result<std::shared_ptr<DecisionLog>> open_decision_log(const Options& options,
                                                       const SpawnRole& what,
                                                       const SchedulerConfig& config) {
  std::string file = options.server.dev_scheduler_log;
  if (file.empty()) return std::shared_ptr<DecisionLog>();
  if (what.group > 0) file += "." + std::to_string(what.group);
  const EncoderCacheSettings encoder_cache = encoder_cache_settings(options.engine, what.model);
  return DecisionLog::open(file, config, kv_cache_settings(options.engine, what.model, what.cache),
                           encoder_cache.capacity == 0 ? nullptr : &encoder_cache);
}

/// Null without a connector.
Result<std::shared_ptr<KVConnector>> make_kv_connector(const NodeState& node,
                                                       const SpawnRole& what) {
  const Options& options = node.options;
  ASSIGN_OR_RETURN(ConnectorConfig config,
                   parse_connector_config(ConnectorKind::kKV, kv_transfer_config(options.engine)));
  if (!config.is_enabled()) return std::shared_ptr<KVConnector>();
  if (what.model.pooler.whole_texts)
    return Error{
        ErrorCode::kUnsupported,
        "kv-transfer-config: this model computes each text in one step, so that no block of "
        "it could be reused",
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
                       .encode =
                           [tokenizer = node.tokenizer](const std::string& text) {
                             return tokenizer->encode(text, /*add_special_tokens=*/false);
                           },
                       .group = static_cast<std::int32_t>(what.group),
                       .num_groups = static_cast<std::int32_t>(options.engine.data_parallel_size)});
}

}  // namespace

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
      ASSIGN_OR_RETURN(std::shared_ptr<DecisionLog> log, open_decision_log(options, what, config));
      return ActorHandles{pointer(spawn_scheduler(
          system, config,
          {.kv_cache_manager = peers.one<KVCacheManagerActor>(Peer::kKVCacheManager),
           .encoder_cache_manager = peers.one<EncoderCacheManagerActor>(Peer::kEncoderCacheManager),
           .executor = peers.one<ExecutorActor>(Peer::kExecutor),
           .output_processor = peers.one<OutputProcessorActor>(Peer::kOutputProcessor),
           .kv_connector = std::move(kv_connector),
           .ec_connector = std::move(ec_connector),
           .grammar_compiler = grammar_pool_of(node, what.model),
           .item_cache = std::move(item_cache),
           .log = std::move(log)}))};
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

}  // namespace troupe::node
