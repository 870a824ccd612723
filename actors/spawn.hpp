#pragma once
// One factory per actor. Clients see the interfaces and these functions; what an actor is made of
// stays in its .cpp.

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
struct KVCacheSettings;
struct NodeConfig;
struct Options;
struct SchedulerConfig;
struct ServerConfig;
struct StartOptions;
struct EngineHandles;

/// What others may see of a Worker while it computes.
struct WorkerProgress {
  std::atomic<std::int64_t> busy_since_ns{0};  ///< on the steady clock; 0: idle
};

/// How a Worker transfers blocks of its KV cache and outputs of encoders.
struct WorkerTransfer {
  std::string config;  ///< the option kv-transfer-config
  std::string host;    ///< as in KVConnectorWorkerContext, both
  std::shared_ptr<const Credentials> credentials;
  /// Of encoders that run apart from the workers; null: there are none.
  std::shared_ptr<RemoteOutputs> remote_outputs;
};

/// A prompt with this token ends the process by a signal; no prompt has -1.
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
//    spawn_remote_executor. When does not matter: calls and steps wait in the rings.
// 3. The engine's process gives spawn_remote_workers(system, rings) to spawn_executor, instead of
//    these workers.
//
// Both actors are to be monitored: remote workers end when any worker's process, or its remote
// executor, has ended; a remote executor ends when its Worker, the engine's process or the remote
// workers have ended. A group that is put together anew gets rings of a new incarnation; a Worker
// that lived on, and its process, take them as they took the first. The end of a process is noticed
// within 100 ms; who learns of it earlier calls rings->detach(i). A process that was stopped, not
// ended, is for others to notice.

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

/// `publisher` gets the events of each step; null: they are not wanted, and settings.events is
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
  EncoderWorkerActor worker;  ///< to be asked to LoadEncoder; it ends with the encoder
};
/// Detached, both: the one computes, the other looks into the connector's store.
[[nodiscard]] EncoderHandles spawn_encoder(caf::actor_system& system, const EncoderConfig& config,
                                           std::shared_ptr<WorkerProgress> progress);

/// It has no encoders before EncodersChanged.
[[nodiscard]] EncoderRouterActor spawn_encoder_router(caf::actor_system& system);
/// What encoders keep, for an EC connector of this process.
[[nodiscard]] std::shared_ptr<RemoteOutputs> make_remote_outputs(caf::actor_system& system,
                                                                 EncoderRouterActor router);

/// Whom the Scheduler speaks with. `encoder_cache_manager` may be null: text only; so may
/// `kv_connector` and `ec_connector`: KV, and what encoders make, stays here; and
/// `grammar_compiler`: structured requests end with an error.
struct SchedulerPeers {
  KVCacheManagerActor kv_cache_manager;
  EncoderCacheManagerActor encoder_cache_manager;
  ExecutorActor executor;
  OutputProcessorActor output_processor;
  std::shared_ptr<KVConnector> kv_connector;
  std::shared_ptr<ECConnector> ec_connector;
  std::shared_ptr<GrammarCompiler> grammar_compiler;
  std::shared_ptr<ItemCache> item_cache;  ///< null: items have their data
};
[[nodiscard]] SchedulerActor spawn_scheduler(caf::actor_system& system,
                                             const SchedulerConfig& config,
                                             const SchedulerPeers& peers);

[[nodiscard]] OutputProcessorActor spawn_output_processor(
    caf::actor_system& system, std::shared_ptr<const Tokenizer> tokenizer);

/// Its workers are detached: tokenising a long prompt takes milliseconds, or a client's own
/// template as long as it may. They share `core`, which is constant. `encoder_router`: has pictures
/// encoded before the Scheduler gets their request; null: the workers do it.
[[nodiscard]] InputProcessorActor spawn_input_processor(caf::actor_system& system,
                                                        std::shared_ptr<const InputProcessor> core,
                                                        std::size_t num_workers,
                                                        OutputProcessorActor output_processor,
                                                        SchedulerActor scheduler,
                                                        EncoderRouterActor encoder_router = {});

struct RouterConfig {
  std::vector<GroupRole> roles = {GroupRole::kBoth};  ///< of each group
  std::int64_t min_split_tokens = 0;                  ///< as the Coordinator has it
  std::uint64_t seed = 0;  ///< of the keys of requests that bring no seed of their own
  std::uint64_t life = 0;  ///< counts the RequestRouters of this engine: no two draw the same keys
  bool enable_adapters = false;
  std::string adapter_directory;  ///< watched for adapters; empty: none
};
/// It has no engine before EngineReady.
[[nodiscard]] RequestRouterActor spawn_request_router(caf::actor_system& system,
                                                      const RouterConfig& config);

/// Detached: it reads a folder, every second. Ends with the RequestRouter, which gets what changes.
[[nodiscard]] AdapterDirectoryActor spawn_adapter_directory(caf::actor_system& system,
                                                            std::string folder,
                                                            const RequestRouterActor& router);

[[nodiscard]] FrontendActor spawn_frontend(caf::actor_system& system, const ServerConfig& config,
                                           const RequestRouterActor& router);

struct NodeHandles {
  NodeActor node;
  HeartActor heart;
  std::shared_ptr<const std::atomic<bool>> released;  ///< set when nobody waits for its return
};
/// What a node of a process of its own has to the rest of the topology.
struct SupervisorLink {
  SupervisorActor supervisor;
  std::shared_ptr<Network> network;
  std::uint16_t port = 0;  ///< where other nodes reach this one
};
/// Detached: it reads files and connects. With a Supervisor elsewhere it joins its topology, and
/// ends with all its actors when that is gone; without, it is the Supervisor's own.
[[nodiscard]] NodeHandles spawn_node(caf::actor_system& system, const Options& options,
                                     const NodeConfig& config, const SupervisorLink& link = {});

/// Detached: it reads files while the engine starts. Fills `handles` before it answers Start.
[[nodiscard]] SupervisorActor spawn_supervisor(caf::actor_system& system,
                                               const StartOptions& options,
                                               std::shared_ptr<EngineHandles> handles);

}  // namespace troupe
