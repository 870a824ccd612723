#pragma once
// One factory per actor. Clients use the interfaces and these functions; the implementation of an
// actor is private to its .cpp.

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "messages/actor_interfaces.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/group_roles.hpp"

namespace troupe {

class Credentials;
class ECConnector;
class GrammarCompiler;
class InputProcessor;
class ItemCache;
class KVConnector;
class KVEventPublisher;
class Network;
class RemoteOutputs;
class StepRings;
class Tokenizer;
struct EncoderCacheSettings;
class DecisionLog;
struct KVCacheSettings;
struct NodeConfig;
struct Options;
struct SchedulerConfig;
struct ServerConfig;
struct StartOptions;
struct EngineHandles;

/// The state of a Worker that others can read while it computes.
struct WorkerProgress {
  std::atomic<std::int64_t> busy_since_ns{0};  ///< on the steady clock; 0: idle
};

/// How a Worker transfers blocks of its KV cache and outputs of encoders.
struct WorkerTransfer {
  std::string config;  ///< the option kv-transfer-config
  std::string host;    ///< as in KVConnectorWorkerContext, both
  std::shared_ptr<const Credentials> credentials;
  /// Of encoders that run in other processes; null: there are none.
  std::shared_ptr<RemoteOutputs> remote_outputs;
};

/// A prompt with this token ends the process with a signal; -1: none.
struct CrashToken {
  std::int64_t token = -1;
  std::int64_t signal = 0;
};

/// Detached: its steps compute. `progress` may be null.
[[nodiscard]] WorkerActor spawn_worker(caf::actor_system& system, std::int32_t rank,
                                       std::shared_ptr<WorkerProgress> progress = nullptr,
                                       CrashToken crash = {}, WorkerTransfer transfer = {});

// Workers in other processes of the engine's host:
//
// 1. The engine's process makes rings = StepRings::create({.ranks, .incarnation}).
// 2. It sends rings->worker(i), a message, to the process of worker i, which calls
//    spawn_remote_executor, at any time: calls and steps wait in the rings.
// 3. The engine's process passes spawn_remote_workers(system, rings) to spawn_executor, instead of
//    these workers.
//
// Both actors must be monitored: remote workers end when any worker's process, or its remote
// executor, has ended; a remote executor ends when its Worker, the engine's process or the remote
// workers have ended. A group that is started again gets rings of a new incarnation; surviving
// Workers and their processes open them as they opened the first. The end of a process is detected
// within 100 ms, or by rings->detach(i) if the caller learns of it earlier. Processes that are
// stopped (SIGSTOP) must be detected by others.

/// The engine's end of the rings. Detached: it may wait for room in a ring. Its answers come from
/// all of its ranks.
[[nodiscard]] WorkerActor spawn_remote_workers(caf::actor_system& system,
                                               std::shared_ptr<StepRings> rings);

/// The worker's end. Detached, for the same reason. Errors: those of WorkerStepRings::open.
[[nodiscard]] Result<StepSinkActor> spawn_remote_executor(caf::actor_system& system,
                                                          const WorkerRings& rings,
                                                          const WorkerActor& worker);

/// `workers` run all ranks of `parallel` together.
[[nodiscard]] ExecutorActor spawn_executor(caf::actor_system& system,
                                           std::vector<WorkerActor> workers,
                                           const ParallelConfig& parallel = {});

/// The actor keeps `core`; it ends with the last of its owners.
[[nodiscard]] KVEventPublisherActor spawn_kv_event_publisher(
    caf::actor_system& system, std::shared_ptr<KVEventPublisher> core);

/// `publisher` gets the events of each step; null: events are disabled, and settings.events is
/// false.
[[nodiscard]] KVCacheManagerActor spawn_kv_cache_manager(caf::actor_system& system,
                                                         const KVCacheSettings& settings,
                                                         KVEventPublisherActor publisher = {});

[[nodiscard]] EncoderCacheManagerActor spawn_encoder_cache_manager(
    caf::actor_system& system, const EncoderCacheSettings& settings);

struct EncoderConfig {
  WorkerOptions worker;
  ConnectorConfig connector;  ///< keeps the outputs
};
struct EncoderHandles {
  EncoderActor encoder;
  EncoderWorkerActor worker;  ///< answers LoadEncoder; ends with the encoder
};
/// Both are detached: one computes, the other reads the connector's store.
[[nodiscard]] EncoderHandles spawn_encoder(caf::actor_system& system, const EncoderConfig& config,
                                           std::shared_ptr<WorkerProgress> progress);

/// It has no encoders before EncodersChanged.
[[nodiscard]] EncoderRouterActor spawn_encoder_router(caf::actor_system& system);
/// The outputs in the encoders' caches, for an EC connector of this process.
[[nodiscard]] std::shared_ptr<RemoteOutputs> make_remote_outputs(caf::actor_system& system,
                                                                 EncoderRouterActor router);

/// The peers of the Scheduler. `encoder_cache_manager` may be null: text only; `kv_connector` and
/// `ec_connector` may be null: KV and encoder outputs are not transferred; `grammar_compiler` may
/// be null: structured requests fail with an error.
struct SchedulerPeers {
  KVCacheManagerActor kv_cache_manager;
  EncoderCacheManagerActor encoder_cache_manager;
  ExecutorActor executor;
  OutputProcessorActor output_processor;
  std::shared_ptr<KVConnector> kv_connector;
  std::shared_ptr<ECConnector> ec_connector;
  std::shared_ptr<GrammarCompiler> grammar_compiler;
  std::shared_ptr<ItemCache> item_cache;  ///< null: items have their data
  std::shared_ptr<DecisionLog> log;       ///< null: none
};
[[nodiscard]] SchedulerActor spawn_scheduler(caf::actor_system& system,
                                             const SchedulerConfig& config,
                                             const SchedulerPeers& peers);

[[nodiscard]] OutputProcessorActor spawn_output_processor(
    caf::actor_system& system, std::shared_ptr<const Tokenizer> tokenizer);

/// Its workers are detached: tokenizing a long prompt takes milliseconds, rendering a client's own
/// template any time. They share `core`, which is constant. `encoder_router`: images are encoded
/// through it before the Scheduler gets their request; null: the workers encode them.
[[nodiscard]] InputProcessorActor spawn_input_processor(caf::actor_system& system,
                                                        std::shared_ptr<const InputProcessor> core,
                                                        std::size_t num_workers,
                                                        OutputProcessorActor output_processor,
                                                        SchedulerActor scheduler,
                                                        EncoderRouterActor encoder_router = {});

struct RouterConfig {
  std::vector<GroupRole> roles = {GroupRole::kBoth};  ///< of each group
  std::int64_t min_split_tokens = 0;                  ///< see Coordinator
  std::uint64_t seed = 0;  ///< of the keys of requests without a seed of their own
  std::uint64_t life = 0;  ///< counts the RequestRouters of this engine, which draw different keys
  bool enable_adapters = false;
  std::string adapter_directory;  ///< watched for adapters; empty: none
};
/// It has no engine before EngineReady.
[[nodiscard]] RequestRouterActor spawn_request_router(caf::actor_system& system,
                                                      const RouterConfig& config);

/// Detached: scans a folder every second, and reports changes to the RequestRouter. Ends with it.
[[nodiscard]] AdapterDirectoryActor spawn_adapter_directory(caf::actor_system& system,
                                                            std::string folder,
                                                            const RequestRouterActor& router);

[[nodiscard]] FrontendActor spawn_frontend(caf::actor_system& system, const ServerConfig& config,
                                           const RequestRouterActor& router);

struct NodeHandles {
  NodeActor node;
  HeartActor heart;
  std::shared_ptr<const std::atomic<bool>> released;  ///< set when it is not expected to return
};
/// How a node in a process of its own reaches the rest of the topology.
struct SupervisorLink {
  SupervisorActor supervisor;
  std::shared_ptr<Network> network;
  std::uint16_t port = 0;  ///< where other nodes reach this one
};
/// Detached: it reads files and connects. With a Supervisor in another process it joins its
/// topology, and ends with all its actors when that is lost; else the Supervisor manages it.
[[nodiscard]] NodeHandles spawn_node(caf::actor_system& system, const Options& options,
                                     const NodeConfig& config, const SupervisorLink& link = {});

/// Detached: it reads files while the engine starts. Fills `handles` before it answers Start.
[[nodiscard]] SupervisorActor spawn_supervisor(caf::actor_system& system,
                                               const StartOptions& options,
                                               std::shared_ptr<EngineHandles> handles);

}  // namespace troupe
