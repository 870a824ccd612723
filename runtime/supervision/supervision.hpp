#pragma once
// The Supervisor's decisions: brings up the groups of the engine, the RequestRouter and the
// Frontend in the nodes of the topology, starts anew what ends, stops them in reverse order.
//
// Events come in, commands come out (take_commands), and time is an argument. Whoever carries the
// commands out, in their order, is actors/supervisor.cpp; a test does it with a world of its own.
//
// What is asked dates from an incarnation of its group, a life of its actor or a visit of its node.
// Each of them rises when something is lost, and answers to earlier questions mean nothing.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/supervision/commands.hpp"

namespace troupe::supervision {

/// The name of actors that stand for the workers of other processes.
inline constexpr std::string_view kRemoteWorkers = "remote workers";

/// What all workers of a group have loaded, and how their memory is divided.
struct SettledModel {
  ModelLoaded model;
  KVCacheConfig cache;
};

struct SupervisionConfig {
  Topology topology;
  bool serve_http = true;
  ParallelConfig parallel;  ///< of each group, without what depends on the rank
  std::string supervisor_host;
  std::uint16_t supervisor_port = 0;  ///< as the options have it
  double node_timeout_s = 0;
  double step_timeout_s = 0;
  std::uint64_t epoch = 0;      ///< how many Supervisors this topology had before, if it is known
  std::uint16_t http_port = 0;  ///< that the last of them had; 0: as the options say
  std::string name;             ///< of this engine: no other one of this host has it
  std::string secret;           ///< of its workers
  /// Of the workers of a group, by rank, and the cache that it had before (of no groups: none).
  std::function<Result<SettledModel>(std::span<const ModelLoaded>, const KVCacheConfig&)> settle;
};

/// What has come of a question for actors.
struct SpawnedActors {
  std::optional<Error> error;
  std::vector<ActorId> actors;  ///< not empty without an error
};

inline constexpr double kCheckInterval_s = 0.5;

class Supervision {
 public:
  explicit Supervision(SupervisionConfig config);

  /// What is to be done for the events so far, in this order; each is given once.
  [[nodiscard]] std::vector<Command> take_commands();

  // ---- Begin and end

  /// The Supervisor's own process is the only node. Before start.
  void add_own_node(ActorId node, ActorId heart);
  /// This process of an earlier Supervisor still runs; its node is to join. Returns its life.
  /// Before start.
  [[nodiscard]] std::uint64_t adopt_process(double now, std::size_t node, std::int64_t pid);
  void start(double now);
  /// Nothing has been started that must be waited for.
  void refuse_start(double now, Error error);
  /// All who have requests have let them end.
  void stop(double now);
  /// Another Supervisor's Frontend takes the clients that come from now on: one that ends is not
  /// started again.
  void retire() { retiring_ = true; }
  /// There will be no engine any more.
  void give_up(const std::string& reason);

  // ---- Nodes

  void process_started(std::size_t node, std::uint64_t life, std::int64_t pid);
  void process_failed(double now, std::size_t node, std::uint64_t life, const Error& error);
  /// Has been waited for: there is no such process any more.
  void process_exited(double now, const NodeExited& exited);
  /// `actors`: the node, its heart, and those that it lists; empty: they are not the sender's own,
  /// or not of another process.
  [[nodiscard]] NodeAccepted join(double now, const JoinNode& join,
                                  const std::vector<ActorId>& actors);
  void node_connected(double now, ActorId node, const NodeConnected& connected);
  void node_prepared(double now, std::size_t node, std::uint64_t visit, const Status& status);
  void heart_beat(double now, ActorId heart, const HeartbeatReply& reply);
  /// Every kCheckInterval_s: who is silent, late or missing?
  void check(double now);
  /// A node reports itself, or its process does. `unreachable`: only the connection has ended.
  void actor_down(double now, ActorId actor, const std::string& reason, bool unreachable);

  // ---- Groups

  void worker_spawned(double now, std::uint32_t incarnation, const SpawnWorker& what,
                      const SpawnedActors& spawned);
  /// What was last asked of all workers of the group.
  void workers_replied(double now, std::uint32_t group, std::uint32_t incarnation,
                       CollectiveRpcReply reply);
  void role_spawned(double now, const SpawnRole& what, const SpawnedActors& spawned);
  void confirm_loss(double now, const ConfirmLoss& loss);
  /// A Supervisor before this one has begun to end this engine, but did not live to do it.
  void engine_refused(double now, const EngineRefused& refused);
  /// For good; it begins anew when its nodes join anew. Errors: it is the last one, or not there.
  [[nodiscard]] Result<void> end_group(double now, std::size_t group);
  /// The share of the weights that all workers have loaded, of which one has told its own by its
  /// Executor.
  [[nodiscard]] double load_progress(ActorId executor, std::int32_t rank, double fraction);

  // ---- RequestRouter and Frontend

  void port_opened(double now, std::uint64_t life, const Listening& listening);
  [[nodiscard]] ActorId router() const noexcept { return router_; }
  [[nodiscard]] ActorId frontend() const noexcept { return frontend_; }

  // ---- What there is

  [[nodiscard]] bool is_single_process() const {
    return nodes_.size() == 1 && nodes_.front().config.name.empty();
  }
  [[nodiscard]] bool is_starting() const noexcept { return starting_; }
  [[nodiscard]] bool is_stopping() const noexcept { return stopping_; }
  [[nodiscard]] bool is_given_up() const noexcept { return given_up_; }
  [[nodiscard]] const NodeConfig& node(std::size_t index) const { return nodes_[index].config; }
  [[nodiscard]] std::optional<std::size_t> find_node(const std::string& name) const;
  [[nodiscard]] TopologyStatus status() const;
  /// Every group that is to serve does, and clients reach it.
  [[nodiscard]] bool is_up() const;
  /// An actor that later commands may name.
  [[nodiscard]] bool knows(ActorId actor) const;

 private:
  /// A process of the topology.
  struct NodeSlot {
    NodeConfig config;
    bool has_process = false;  ///< false: on another host, or this process itself
    std::int64_t pid = 0;
    std::uint64_t life = 0;  ///< counts its processes
    double started_at = 0;
    double killed_at = 0;    ///< 0: not asked to leave; else when it is killed if it has not left
    double lost_at = 0;      ///< when it counts as gone if it is not connected by then; 0: never
    ActorId node = kNobody;  ///< nobody: not there (yet)
    ActorId heart = kNobody;
    std::uint64_t visit = 0;  ///< counts how often it has been there: dates what it is asked
    NodeAddress address;
    bool connected = false;  ///< to the other nodes
    bool preparing = false;
    bool prepared = false;       ///< but for the tokenizer
    bool has_tokenizer = false;  ///< if it needs one
    bool cut_off = false;        ///< the connection has ended: its process ends, or it joins again
    double heard_at = 0;
    /// What it has brought along, until it is adopted or ended.
    std::vector<std::pair<RunningActor, ActorId>> found;
    std::vector<GroupRecord> records;
  };

  struct WorkerSlot {
    std::size_t node = 0;
    ActorId worker = kNobody;  ///< nobody: not there (yet)
    bool spawning = false;
    double fraction = 0;  ///< of the weights that are loaded
    std::optional<ModelLoaded> loaded;
  };

  /// An engine: all roles but those that groups share, and the workers.
  struct GroupSlot {
    GroupState state = GroupState::kStarting;
    std::uint32_t incarnation = 1;    ///< rises whenever something of the group is lost
    std::vector<WorkerSlot> workers;  ///< by rank
    std::string rendezvous;           ///< where they meet; empty: there is one
    std::string secret;
    ModelLoaded model;
    KVCacheConfig cache;
    bool workers_asked = false;   ///< all workers are at a method, the next in order
    bool have_caches = false;     ///< of this incarnation
    bool are_warm = false;        ///< the workers, since they have been loaded
    std::size_t num_spawned = 0;  ///< roles, in their order
    bool role_asked = false;      ///< the next one is being spawned
    std::array<std::vector<ActorId>, kNumRoles> actors;
    int num_recoveries = 0;  ///< since it was last up
    bool waits = false;      ///< for the next look at the nodes

    [[nodiscard]] const std::vector<ActorId>& actors_of(Role role) const {
      return actors[static_cast<std::size_t>(role)];
    }
    /// Pre: the role has been spawned.
    [[nodiscard]] ActorId first_of(Role role) const { return actors_of(role).at(0); }
  };

  /// An encoder, which all groups share.
  struct EncoderSlot {
    std::size_t node = 0;
    ActorId actor = kNobody;  ///< nobody: not there (yet)
    bool spawning = false;
    std::uint64_t life = 0;  ///< no two have the same
    int num_failures = 0;    ///< to start, in a row
    bool waits = false;      ///< for the next look at the nodes
  };

  /// Somebody whose end is an incident.
  struct Watched {
    std::string name;
    ActorId actor = kNobody;
    std::size_t node = 0;
    std::optional<std::size_t> group;  ///< none: all of them
  };

  /// Before the engine has ever served, nothing is tried twice.
  [[nodiscard]] bool refuses() const noexcept { return starting_ && !resumed_; }

  template <class What>
  void command(What what) {
    commands_.emplace_back(std::move(what));
  }

  // ---- supervision.cpp

  /// Who spawns, watches.
  void watch(std::string name, ActorId actor, std::size_t node,
             std::optional<std::size_t> group = std::nullopt);
  /// Its end is no incident.
  void end_quietly(ActorId actor);
  /// Ends the actors one by one, last spawned first; then the processes.
  void end_children(double now);
  [[nodiscard]] std::string rendezvous_name(std::size_t group) const;

  // ---- front.cpp

  /// The index of the node that has this role, which all groups share.
  [[nodiscard]] std::size_t node_of(Role role) const;
  /// Something has changed that RequestRouter and Frontend may have waited for: their nodes, or a
  /// group. Spawns the one, then, when there is a group for it, the other.
  void advance_front();
  /// All actors of the group are there: the RequestRouter gets it.
  void on_group_up(std::size_t group);
  void lose_router();
  void lose_frontend();
  /// One of them, or both, are gone, and are to come back. Without a RequestRouter nobody reads
  /// what the groups compute: they begin anew too.
  void recover_front(double now, const std::string& reason, LossCause cause);
  /// RequestRouter and Frontend that the node has brought along.
  void adopt_front(std::size_t index);
  void take_router(ActorId router);
  void fail_front(double now, Role role, const Error& error);
  void front_spawned(double now, const SpawnRole& what, const SpawnedActors& spawned);
  void hand_over(std::size_t group);
  void report_started();
  void report_group(std::size_t group);
  void report_groups();
  void spawn_frontend();
  void spawn_router();
  [[nodiscard]] const GroupSlot* find_serving() const;
  [[nodiscard]] bool has_enough_groups() const;
  [[nodiscard]] bool reaches_clients() const;

  // ---- encoders.cpp

  [[nodiscard]] bool has_all_encoders() const;
  /// Spawns those that are missing where their nodes are there.
  void advance_encoders();
  void encoder_spawned(const SpawnRole& what, const SpawnedActors& spawned, double now);
  void take_encoder(EncoderSlot& encoder, ActorId actor);
  /// False: it is no encoder.
  bool lose_encoder(ActorId actor, double now, const std::string& reason);
  void forget_encoders(std::size_t node);
  /// To all nodes that use them, or to one.
  void send_encoders();
  void send_encoders(std::size_t node);
  [[nodiscard]] bool adopt_encoder(std::size_t node, ActorId actor);

  // ---- nodes.cpp

  /// The node is gone, or is to be: what is left of its process is killed, and comes back by
  /// itself.
  void lose_node(std::size_t index);
  void forget_node(std::size_t index);
  /// Has the node read what it does not have yet: pre: it is connected.
  void prepare_node(std::size_t index);
  /// The group has ended: asks those of its nodes to leave that run nothing else.
  void release_nodes(double now, std::size_t group);
  void start_process(double now, std::size_t index);
  void excuse_pause(double now);
  [[nodiscard]] bool is_needed(const NodeSlot& slot) const;
  [[nodiscard]] bool is_missing(const NodeSlot& slot) const;
  [[nodiscard]] double join_timeout_s() const;

  // ---- groups.cpp

  /// Does what can be done next for a group. Called whenever something has been achieved.
  void advance_group(std::size_t group);
  /// Something of the group is gone. What lives of it ends, but workers that have lost no rank of
  /// their group; then it is brought up anew.
  void recover_group(double now, std::size_t group, const std::string& reason, LossCause cause);
  /// What runs in this node, or depends on it, is gone.
  void recover_node(double now, std::size_t index, const std::string& reason, LossCause cause);
  /// All its nodes are there: an absent group begins.
  void admit_group(std::size_t group);
  void fail_group(double now, std::size_t group, Error error);
  /// What the nodes have brought along of the group: it serves at once if that is all of it, and
  /// fits together; else it is ended. Pre: all its nodes are connected, and the RequestRouter's is.
  void adopt_group(std::size_t group);
  /// Why what was found is no engine; empty: it is one.
  [[nodiscard]] std::string check_found(std::size_t group, const GroupRecord* record) const;
  [[nodiscard]] const GroupRecord* find_record(std::size_t group) const;
  [[nodiscard]] std::vector<ActorId> find_running(std::size_t group, const GroupRecord& record,
                                                  Role role) const;
  [[nodiscard]] ActorId find_worker(std::size_t group, std::size_t rank) const;
  [[nodiscard]] bool has_found(std::size_t group) const;
  void forget_found(std::size_t group);
  /// The nodes of a group that serves keep what the next Supervisor needs.
  void send_records(std::size_t group);
  void prepare_nodes(std::size_t group);
  /// Asks all workers for what comes next. True: they are ready for steps.
  [[nodiscard]] bool advance_workers(std::size_t group);
  void load_model(std::size_t group);
  void ask_workers(std::size_t group, WorkerMethod method);
  void spawn_workers(std::size_t group);
  [[nodiscard]] Result<void> settle_model(GroupSlot& group) const;
  void spawn_role(std::size_t group, Role role);
  /// The next of the group's roles is there.
  void watch_role(std::size_t group, Role role, std::vector<ActorId> actors);
  void end_workers(GroupSlot& slot);
  void end_actors(GroupSlot& slot);
  void leave_out(double now, std::size_t group, const std::string& reason, LossCause cause);
  [[nodiscard]] RankPlacement placement_of(const WorkerSlot& worker) const;
  [[nodiscard]] bool is_last(std::size_t group) const;
  [[nodiscard]] bool all_nodes(std::size_t group, bool NodeSlot::*flag) const;
  [[nodiscard]] std::size_t node_index(std::size_t group, Role role) const;
  [[nodiscard]] std::vector<std::int32_t> ring_ranks(std::size_t group) const;
  [[nodiscard]] std::vector<ActorId> find_peers(std::size_t group, Peer peer) const;

  SupervisionConfig config_;
  std::vector<Command> commands_;
  std::vector<NodeSlot> nodes_;
  std::vector<GroupSlot> groups_;
  std::vector<EncoderSlot> encoders_;  ///< one per node with this role
  std::uint64_t encoder_life_ = 0;

  ActorId router_ = kNobody;
  bool router_spawning_ = false;
  std::uint64_t router_life_ = 0;
  ActorId frontend_ = kNobody;
  bool frontend_spawning_ = false;
  bool listening_ = false;  ///< its port is open
  std::uint64_t frontend_life_ = 0;
  std::uint16_t http_port_ = 0;  ///< the next Frontend opens the same one
  int num_front_losses_ = 0;     ///< of RequestRouter and Frontend, since all was up
  bool front_waits_ = false;     ///< for the next look at the nodes

  std::vector<Watched> watched_;  ///< in the order of spawning
  bool starting_ = true;          ///< Start has not been answered
  bool resumed_ = false;          ///< another Supervisor has started the engine
  bool stopping_ = false;
  bool retiring_ = false;
  bool given_up_ = false;
  double checked_at_ = 0;  ///< 0: never
  double killed_at_ = 0;   ///< while stopping: when processes that are left are killed
};

}  // namespace troupe::supervision
