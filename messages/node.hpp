#pragma once
// Messages between the Supervisor and the nodes: the processes in which actors are placed.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/cache.hpp"
#include "messages/control.hpp"
#include "messages/error.hpp"
#include "messages/worker.hpp"

namespace troupe {

/// Incremented when a message changes in a way that an older build misreads. Nodes of different
/// versions reject each other.
inline constexpr std::uint32_t kProtocolVersion = 11;

/// The roles of a node other than Worker, which has ranks.
enum class Role : std::uint8_t {
  kFrontend,
  kRequestRouter,
  kInputProcessor,
  kOutputProcessor,
  kScheduler,
  kKVCacheManager,
  kEncoderCacheManager,
  kExecutor,
  kEncoder,
};
inline constexpr std::size_t kNumRoles = 9;

/// The role of a peer, seen from the actor that sends to it.
enum class Peer : std::uint8_t {
  kWorkers,    ///< of its group, by rank
  kRingNodes,  ///< the nodes of SpawnRole::ring_ranks
  kExecutor,
  kKVCacheManager,
  kEncoderCacheManager,
  kScheduler,
  kOutputProcessor,
  kRequestRouter,
  kRouterNode,  ///< the RequestRouter's, monitored for reachability
};

/// An actor that runs in a node, with the parameters it was started with.
struct RunningActor {
  bool is_worker = false;
  Role role{};  ///< of another actor than a Worker
  std::uint32_t group = 0;
  std::int32_t rank = 0;          ///< of a Worker
  std::uint32_t incarnation = 0;  ///< of the group, but for Workers
  std::uint64_t life = 0;         ///< of the RequestRouter
  bool operator==(const RunningActor&) const = default;
};
TROUPE_MESSAGE(RunningActor, is_worker, role, group, rank, incarnation, life)

/// Supervisor -> each node of a serving group: the state with which a later Supervisor can adopt
/// the running group.
struct GroupRecord {
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t router_life = 0;  ///< of the RequestRouter that the group answers
  std::string rendezvous;
  std::string secret;
  std::vector<ModelLoaded> loaded;  ///< by rank
  ModelLoaded model;
  KVCacheConfig cache;
  bool operator==(const GroupRecord&) const = default;
};
TROUPE_MESSAGE(GroupRecord, group, incarnation, router_life, rendezvous, secret, loaded, model,
               cache)

/// A node -> Supervisor: a node of this name is ready to join. Beside it the handles of its
/// NodeActor, its HeartActor and of each of `actors`. Answered with NodeAccepted.
struct JoinNode {
  std::uint32_t protocol = kProtocolVersion;
  std::string version;  ///< of the build
  std::string name;     ///< in the topology
  std::int64_t pid = 0;
  std::uint16_t port = 0;  ///< where other nodes reach it
  // The state under the previous Supervisor, if there was one.
  std::uint64_t epoch = 0;  ///< of that Supervisor
  bool prepared = false;
  bool has_tokenizer = false;
  std::vector<RunningActor> actors;
  std::vector<GroupRecord> groups;
  bool operator==(const JoinNode&) const = default;
};
TROUPE_MESSAGE(JoinNode, protocol, version, name, pid, port, epoch, prepared, has_tokenizer, actors,
               groups)

struct NodeAddress {
  std::string host;
  std::uint16_t port = 0;
  bool operator==(const NodeAddress&) const = default;
};
TROUPE_MESSAGE(NodeAddress, host, port)

/// The nodes that joined before: the new one connects to each, then sends NodeConnected.
struct NodeAccepted {
  std::vector<NodeAddress> peers;
  std::uint64_t epoch = 0;     ///< counts the Supervisors of a topology
  std::optional<Error> error;  ///< refused; kUnavailable: for now
  bool operator==(const NodeAccepted&) const = default;
};
TROUPE_MESSAGE(NodeAccepted, peers, epoch, error)

/// A node -> Supervisor: every peer is connected, or the first that is not, with the reason.
struct NodeConnected {
  std::optional<Error> error;
  bool operator==(const NodeConnected&) const = default;
};
TROUPE_MESSAGE(NodeConnected, error)

/// Supervisor -> node: prepare for your roles. First fast checks of the configuration; then, while
/// workers load, the tokenizer. Answered with Status.
struct PrepareNode {
  bool read_tokenizer = false;
  bool operator==(const PrepareNode&) const = default;
};
TROUPE_MESSAGE(PrepareNode, read_tokenizer)

/// Supervisor -> node: start the Worker of this rank of a group. Answered with its handle.
struct SpawnWorker {
  std::uint32_t group = 0;
  std::int32_t rank = 0;
  bool operator==(const SpawnWorker&) const = default;
};
TROUPE_MESSAGE(SpawnWorker, group, rank)

/// Supervisor -> node: start the actor or, for InputProcessors, the actors of this role. Answered
/// with their handles. The handles of its peers are passed with it (runtime/config/roles.hpp). The
/// RequestRouter learns of the groups by EngineReady.
struct SpawnRole {
  Role role{};
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;  ///< of the group: incremented by each restart
  ModelLoaded model;
  KVCacheConfig cache;
  std::uint16_t port = 0;  ///< of the Frontend, if it ran before; 0: as the options say
  /// Workers on the Executor's host in other processes, reached through rings.
  std::vector<std::int32_t> ring_ranks;
  std::vector<Peer> peers;  ///< the role of each handle passed with it
  std::uint64_t life = 0;   ///< of the RequestRouter: counts its starts
  bool operator==(const SpawnRole&) const = default;
};
TROUPE_MESSAGE(SpawnRole, role, group, incarnation, model, cache, port, ring_ranks, peers, life)

/// Supervisor -> each node of a group: the current list of encoders, with their handles.
struct EncodersChanged {
  std::vector<std::string> names;  ///< of their nodes
  bool operator==(const EncodersChanged&) const = default;
};
TROUPE_MESSAGE(EncodersChanged, names)

/// The Executor's node -> the node of a Worker on the same host.
struct OpenRings {
  std::uint32_t group = 0;
  WorkerRings rings;
  bool operator==(const OpenRings&) const = default;
};
TROUPE_MESSAGE(OpenRings, group, rings)

/// Supervisor -> a node's HeartActor: answered at once with HeartbeatReply while the node's actors
/// are being scheduled.
struct Heartbeat {
  bool operator==(const Heartbeat&) const = default;
};
TROUPE_MESSAGE(Heartbeat)

struct HeartbeatReply {
  double busy_s = 0;  ///< how long the slowest of the node's Workers has been in its step; 0: idle
  bool operator==(const HeartbeatReply&) const = default;
};
TROUPE_MESSAGE(HeartbeatReply, busy_s)

/// The Supervisor to itself: a child process has exited.
struct NodeExited {
  std::uint32_t node = 0;  ///< index in the topology
  std::uint64_t life = 0;  ///< counts the processes started for this node
  std::string how;         ///< "exit code 1"
  LossCause cause = LossCause::kOutside;
  bool operator==(const NodeExited&) const = default;
};
TROUPE_MESSAGE(NodeExited, node, life, how, cause)

/// The Supervisor and each node to itself: check that the others are alive.
struct CheckNodes {
  bool operator==(const CheckNodes&) const = default;
};
TROUPE_MESSAGE(CheckNodes)

/// The Supervisor to itself: act on this loss unless it has been handled.
struct ConfirmLoss {
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  std::string reason;
  bool operator==(const ConfirmLoss&) const = default;
};
TROUPE_MESSAGE(ConfirmLoss, group, incarnation, reason)

/// Supervisor -> node: end all actors, then the process.
struct LeaveNode {
  bool for_good = false;  ///< it will not be restarted: its groups were drained
  bool operator==(const LeaveNode&) const = default;
};
TROUPE_MESSAGE(LeaveNode, for_good)

}  // namespace troupe
