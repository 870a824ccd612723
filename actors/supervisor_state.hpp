#pragma once
// The Supervisor's state, and what its three files do for each other: supervisor.cpp has the
// beginning, the end and what all groups share, supervisor_nodes.cpp the processes,
// supervisor_groups.cpp the engine of each group.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/deadlines.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/base/child_process.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/config/node_secrets.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/transport/local_secret.hpp"

namespace troupe::supervision {

/// A process of the topology.
struct NodeSlot {
  NodeConfig config;
  std::unique_ptr<ChildProcess> process;  ///< null: on another host, or this process itself
  std::uint64_t life = 0;                 ///< counts its processes
  double started_at = 0;
  double killed_at = 0;  ///< 0: not asked to leave; else when it is killed if it has not left
  double lost_at = 0;    ///< when it counts as gone if it is not connected by then; 0: never
  NodeActor node;        ///< null: not there (yet)
  HeartActor heart;
  std::uint64_t visit = 0;  ///< counts how often it has been there: dates what it is asked
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

/// An engine: all roles but those that groups share, and the workers.
struct GroupSlot {
  GroupState state = GroupState::kStarting;
  /// Rises whenever something of the group is lost: answers to earlier questions mean nothing.
  std::uint32_t incarnation = 1;
  std::vector<WorkerSlot> workers;  ///< by rank
  std::string rendezvous;           ///< where they meet; empty: there is one
  std::string secret = random_secret();
  ModelLoaded model;
  KVCacheConfig cache;
  bool caches_asked = false;
  std::size_t num_caches = 0;   ///< workers that have taken their memory
  std::size_t num_spawned = 0;  ///< roles, in their order
  bool role_asked = false;      ///< the next one is being spawned
  std::array<ActorHandles, kNumRoles> actors;
  int num_recoveries = 0;  ///< since it was last up
  bool waits = false;      ///< for the next look at the nodes

  [[nodiscard]] const ActorHandles& actors_of(Role role) const {
    return actors[static_cast<std::size_t>(role)];
  }
  /// Pre: the role has been spawned.
  template <class Handle = caf::strong_actor_ptr>
  [[nodiscard]] Handle first_of(Role role) const {
    return caf::actor_cast<Handle>(actors_of(role).at(0));
  }
};

/// Somebody whose end is an incident.
struct Watched {
  std::string name;
  caf::actor actor;
  std::size_t node = 0;
  std::optional<std::size_t> group;  ///< none: all of them
};

struct SupervisorState {
  SupervisorState() = default;
  static inline const char* name = "supervisor";

  StartOptions start;
  std::shared_ptr<EngineHandles> handles;
  SamplingDefaults sampling_defaults;

  std::unique_ptr<Network> network;  ///< null: all is in one process
  std::optional<LocalSecret> local_secret;
  NodeSecrets secrets;  ///< of the processes that are started here
  std::vector<NodeSlot> nodes;
  std::uint16_t port = 0;  ///< where nodes join

  std::vector<GroupSlot> groups;

  RequestRouterActor router;
  bool router_spawning = false;
  std::uint64_t router_life = 0;
  FrontendActor frontend;
  bool frontend_spawning = false;
  bool listening = false;  ///< its port is open
  std::uint64_t frontend_life = 0;
  std::uint16_t http_port = 0;  ///< the next Frontend opens the same one
  int num_front_losses = 0;     ///< of RequestRouter and Frontend, since all was up
  bool front_waits = false;     ///< for the next look at the nodes

  std::vector<Watched> watched;  ///< in the order of spawning
  bool stopping = false;
  bool given_up = false;
  double killed_at = 0;  ///< while stopping: when processes that are left are killed
  caf::typed_response_promise<Started> started;
  caf::typed_response_promise<Stopped> stopped;

  [[nodiscard]] bool is_single_process() const {
    return nodes.size() == 1 && nodes.front().config.name.empty();
  }
  /// The index of the node that has this role, which all groups share.
  [[nodiscard]] std::size_t node_of(Role role) const {
    std::size_t index = 0;
    while (!nodes[index].config.has(role)) ++index;
    return index;
  }
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

// ---- supervisor.cpp

/// Who spawns, watches.
void watch(Self self, std::string name, const caf::strong_actor_ptr& actor, std::size_t node,
           std::optional<std::size_t> group = std::nullopt);
/// Its end is no incident.
void end_quietly(SupervisorState& supervisor, const caf::strong_actor_ptr& actor);
/// Ends the actors one by one, last spawned first; then the processes.
void end_children(Self self);
/// Before the engine has ever served: nothing is tried twice.
void refuse_start(Self self, Error error);
/// There will be no engine any more.
void give_up(Self self, const std::string& reason);
/// Something has changed that RequestRouter and Frontend may have waited for: their nodes, or a
/// group. Spawns the one, then, when there is a group for it, the other.
void advance_front(Self self);
/// All actors of the group are there: the RequestRouter gets it.
void on_group_up(Self self, std::size_t group);
void lose_router(SupervisorState& supervisor);
void lose_frontend(SupervisorState& supervisor);
/// One of them, or both, are gone, and are to come back. Without a RequestRouter nobody reads what
/// the groups compute: they begin anew too.
void recover_front(Self self, const std::string& reason, LossCause cause);

/// Why a node has not started what it was told to; nothing: it has, and says which actors.
[[nodiscard]] std::optional<Error> refusal(const Status& status, const ActorHandles& handles);

// ---- supervisor_nodes.cpp

/// Opens the port for nodes and starts the processes of this host.
[[nodiscard]] Result<void> start_nodes(Self self);
/// The node is gone, or is to be: what is left of its process is killed, and comes back by itself.
void lose_node(Self self, std::size_t index);
/// Has the node read what it does not have yet: pre: it is connected.
void prepare_node(Self self, std::size_t index);
/// The group has ended: asks those of its nodes to leave that run nothing else.
void release_nodes(Self self, std::size_t group);
void check_nodes_later(Self self);
void check_nodes(Self self);
[[nodiscard]] NodeAccepted on_join(Self self, const JoinNode& join, const ActorHandles& handles);
void on_connected(Self self, const NodeConnected& connected);
void on_heartbeat(Self self, const HeartbeatReply& reply);
void on_node_exited(Self self, const NodeExited& exited);

// ---- supervisor_groups.cpp

/// Does what can be done next for a group. Called whenever something has been achieved.
void advance_group(Self self, std::size_t group);
/// Something of the group is gone. What lives of it ends, but workers that have lost no rank of
/// their group; then it is brought up anew.
void recover_group(Self self, std::size_t group, const std::string& reason, LossCause cause);
/// What runs in this node, or depends on it, is gone.
void recover_node(Self self, std::size_t index, const std::string& reason, LossCause cause);
void recover_all(Self self, const std::string& reason, LossCause cause);
/// For good; it begins anew when its nodes join anew. Errors: it is the last one, or not there.
[[nodiscard]] Result<void> end_group(Self self, std::size_t group, const std::string& reason);
/// All its nodes are there: an absent group begins.
void admit_group(Self self, std::size_t group);
void on_confirm_loss(Self self, const ConfirmLoss& loss);

/// The name of actors that stand for the workers of other processes.
inline constexpr std::string_view kRemoteWorkers = "remote workers";

}  // namespace troupe::supervision
