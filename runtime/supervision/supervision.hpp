#pragma once
// The Supervisor's decisions: starts the groups of the engine, the RequestRouter and the Frontend
// in the nodes of the topology, restarts what ends, stops them in reverse order.
//
// Events are the input, commands the output (take_commands), and time is an argument. Commands are
// carried out in order by actors/supervisor_commands.cpp; tests simulate the processes instead.
//
// Questions carry the incarnation of the group, the life of the actor or the visit of the node.
// Each of these counters increases after a loss, and answers to earlier questions are ignored.

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

/// The name of the proxies for workers in other processes.
inline constexpr std::string_view kRemoteWorkers = "remote workers";

/// What all workers of a group have loaded, and how their memory is divided.
struct SettledModel {
  ModelLoaded model;
  KVCacheConfig cache;
};

struct SupervisionConfig {
  Topology topology;
  bool serve_http = true;
  ParallelConfig parallel;  ///< of each group, except for the fields that depend on the rank
  std::string supervisor_host;
  std::uint16_t supervisor_port = 0;  ///< as in the options
  double node_timeout_s = 0;
  double step_timeout_s = 0;
  std::uint64_t epoch = 0;      ///< number of earlier Supervisors of this topology, if known
  std::uint16_t http_port = 0;  ///< of the last of them; 0: as in the options
  std::string name;             ///< of this engine: unique on this host
  std::string secret;           ///< of its workers
  /// Arguments: the workers of a group, by rank, and its previous cache (no groups: none).
  std::function<Result<SettledModel>(std::span<const ModelLoaded>, const KVCacheConfig&)> settle;
};

/// The result of spawning actors.
struct SpawnedActors {
  std::optional<Error> error;
  std::vector<ActorId> actors;  ///< not empty without an error
};

inline constexpr double kCheckInterval_s = 0.5;

class Supervision {
 public:
  explicit Supervision(SupervisionConfig config);

  /// The commands for the events so far, in order; each is returned once.
  [[nodiscard]] std::vector<Command> take_commands();

  // ---- Start and stop

  /// The Supervisor's own process is the only node. Before start.
  void add_own_node(ActorId node, ActorId heart);
  /// A process of an earlier Supervisor still runs; its node should join. Returns its life.
  /// Before start.
  [[nodiscard]] std::uint64_t adopt_process(double now, std::size_t node, std::int64_t pid);
  void start(double now);
  /// The start has failed before anything was started.
  void refuse_start(double now, Error error);
  /// All requests have been drained.
  void stop(double now);
  /// The Frontend of another Supervisor accepts new clients from now on: this one's is not
  /// restarted if it ends.
  void retire() { retiring_ = true; }
  /// No engine will be started any more.
  void give_up(const std::string& reason);

  // ---- Nodes

  void process_started(std::size_t node, std::uint64_t life, std::int64_t pid);
  void process_failed(double now, std::size_t node, std::uint64_t life, const Error& error);
  /// The process has been reaped (waitpid).
  void process_exited(double now, const NodeExited& exited);
  /// `actors`: the node, its HeartActor, and those that it lists; empty: they are not of the
  /// sender's process, or of this one.
  [[nodiscard]] NodeAccepted join(double now, const JoinNode& join,
                                  const std::vector<ActorId>& actors);
  void node_connected(double now, ActorId node, const NodeConnected& connected);
  void node_prepared(double now, std::size_t node, std::uint64_t visit, const Status& status);
  void heart_beat(double now, ActorId heart, const HeartbeatReply& reply);
  /// Every kCheckInterval_s: detects nodes that are silent, late or missing.
  void check(double now);
  /// An actor, its node or its process has ended. `unreachable`: only the connection has ended.
  void actor_down(double now, ActorId actor, const std::string& reason, bool unreachable);

  // ---- Groups

  void worker_spawned(double now, std::uint32_t incarnation, const SpawnWorker& what,
                      const SpawnedActors& spawned);
  /// The reply of all workers of the group to the last call.
  void workers_replied(double now, std::uint32_t group, std::uint32_t incarnation,
                       CollectiveRpcReply reply);
  void role_spawned(double now, const SpawnRole& what, const SpawnedActors& spawned);
  void confirm_loss(double now, const ConfirmLoss& loss);
  /// An earlier Supervisor was ending this engine when it died.
  void engine_refused(double now, const EngineRefused& refused);
  /// Until its nodes join again. Errors: it is the last group, or does not run.
  [[nodiscard]] Result<void> end_group(double now, std::size_t group);
  /// The fraction of the weights that all workers have loaded, after a report of one of them
  /// through its Executor.
  [[nodiscard]] double load_progress(ActorId executor, std::int32_t rank, double fraction);

  // ---- RequestRouter and Frontend

  void port_opened(double now, std::uint64_t life, const Listening& listening);
  [[nodiscard]] ActorId router() const noexcept { return router_; }
  [[nodiscard]] ActorId frontend() const noexcept { return frontend_; }

  // ---- State

  [[nodiscard]] bool is_single_process() const {
    return nodes_.size() == 1 && nodes_.front().config.name.empty();
  }
  [[nodiscard]] bool is_starting() const noexcept { return starting_; }
  [[nodiscard]] bool is_stopping() const noexcept { return stopping_; }
  [[nodiscard]] bool is_given_up() const noexcept { return given_up_; }
  [[nodiscard]] const NodeConfig& node(std::size_t index) const { return nodes_[index].config; }
  [[nodiscard]] std::optional<std::size_t> find_node(const std::string& name) const;
  [[nodiscard]] TopologyStatus status() const;
  /// Every group that should serve does, and is reachable for clients.
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
    double killed_at = 0;    ///< 0: not asked to leave; else when it is killed unless it has left
    double lost_at = 0;      ///< when it counts as lost unless it is connected by then; 0: never
    ActorId node = kNobody;  ///< kNobody: has not joined
    ActorId heart = kNobody;
    std::uint64_t visit = 0;  ///< number of times that it has joined; dates questions
    NodeAddress address;
    bool connected = false;  ///< to the other nodes
    bool preparing = false;
    bool prepared = false;       ///< except for the tokenizer
    bool has_tokenizer = false;  ///< if it needs one
    bool cut_off = false;        ///< disconnected: its process ends, or it joins again
    double heard_at = 0;
    /// The running actors with which it joined, until they are adopted or ended.
    std::vector<std::pair<RunningActor, ActorId>> found;
    std::vector<GroupRecord> records;
  };

  struct WorkerSlot {
    std::size_t node = 0;
    ActorId worker = kNobody;  ///< kNobody: not running
    bool spawning = false;
    double fraction = 0;  ///< of the weights that are loaded
    std::optional<ModelLoaded> loaded;
  };

  /// An engine: all roles but those that groups share, and the workers.
  struct GroupSlot {
    GroupState state = GroupState::kStarting;
    std::uint32_t incarnation = 1;    ///< increases whenever an actor of the group is lost
    std::vector<WorkerSlot> workers;  ///< by rank
    std::string rendezvous;           ///< ParallelConfig::rendezvous; empty: a single worker
    std::string secret;
    ModelLoaded model;
    KVCacheConfig cache;
    bool workers_asked = false;   ///< all workers run a method, the next in order
    bool have_caches = false;     ///< the workers, for this incarnation
    bool are_warm = false;        ///< the workers, since they were loaded
    std::size_t num_spawned = 0;  ///< roles, in their order
    bool role_asked = false;      ///< the next one is being spawned
    std::array<std::vector<ActorId>, kNumRoles> actors;
    int num_recoveries = 0;  ///< since it was last up
    bool waits = false;      ///< until the next check()

    [[nodiscard]] const std::vector<ActorId>& actors_of(Role role) const {
      return actors[static_cast<std::size_t>(role)];
    }
    /// Pre: the role has been spawned.
    [[nodiscard]] ActorId first_of(Role role) const { return actors_of(role).at(0); }
  };

  /// An encoder, which all groups share.
  struct EncoderSlot {
    std::size_t node = 0;
    ActorId actor = kNobody;  ///< kNobody: not running
    bool spawning = false;
    std::uint64_t life = 0;  ///< no two have the same
    int num_failures = 0;    ///< to start, in a row
    bool waits = false;      ///< until the next check()
  };

  /// An actor whose end is a failure.
  struct Watched {
    std::string name;
    ActorId actor = kNobody;
    std::size_t node = 0;
    std::optional<std::size_t> group;  ///< none: all of them
  };

  /// A failure refuses the start: before the engine has served, nothing is retried.
  [[nodiscard]] bool refuses() const noexcept { return starting_ && !resumed_; }

  template <class What>
  void command(What what) {
    commands_.emplace_back(std::move(what));
  }

  // ---- supervision.cpp

  /// Every spawned actor is watched.
  void watch(std::string name, ActorId actor, std::size_t node,
             std::optional<std::size_t> group = std::nullopt);
  /// Its end is not a failure.
  void end_quietly(ActorId actor);
  /// Ends the actors one by one, last spawned first; then the processes.
  void end_children(double now);
  [[nodiscard]] std::string rendezvous_name(std::size_t group) const;

  // ---- front.cpp

  /// The index of the node that has this role, which all groups share.
  [[nodiscard]] std::size_t node_of(Role role) const;
  /// Called when something has changed that RequestRouter and Frontend may wait for: their nodes,
  /// or a group. Spawns the RequestRouter, then, when it has a group, the Frontend.
  void advance_front();
  /// All actors of the group run: announces it to the RequestRouter.
  void on_group_up(std::size_t group);
  void lose_router();
  void lose_frontend();
  /// Restarts the RequestRouter or the Frontend, or both. Without a RequestRouter the outputs of
  /// the groups have no recipient, so they are restarted too.
  void recover_front(double now, const std::string& reason, LossCause cause);
  /// Adopts the RequestRouter and the Frontend with which the node has joined.
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
  /// Spawns those that are missing and whose nodes have joined.
  void advance_encoders();
  void encoder_spawned(const SpawnRole& what, const SpawnedActors& spawned, double now);
  void take_encoder(EncoderSlot& encoder, ActorId actor);
  /// False: not an encoder.
  bool lose_encoder(ActorId actor, double now, const std::string& reason);
  void forget_encoders(std::size_t node);
  /// To all nodes that use encoders, or to one.
  void send_encoders();
  void send_encoders(std::size_t node);
  [[nodiscard]] bool adopt_encoder(std::size_t node, ActorId actor);

  // ---- nodes.cpp

  /// The node is lost, or should be: its process is killed if it still runs, and restarted when it
  /// has ended.
  void lose_node(std::size_t index);
  void forget_node(std::size_t index);
  /// Makes the node load what it has not loaded yet. Pre: it is connected.
  void prepare_node(std::size_t index);
  /// After the end of a group: asks its nodes to leave, except those that run other actors.
  void release_nodes(double now, std::size_t group);
  void start_process(double now, std::size_t index);
  void excuse_pause(double now);
  [[nodiscard]] bool is_needed(const NodeSlot& slot) const;
  [[nodiscard]] bool is_missing(const NodeSlot& slot) const;
  [[nodiscard]] double join_timeout_s() const;

  // ---- groups.cpp

  /// Takes the next possible steps of starting a group. Called after every success.
  void advance_group(std::size_t group);
  /// An actor of the group is lost. Ends the others, except workers if no rank is lost, and starts
  /// the group again.
  void recover_group(double now, std::size_t group, const std::string& reason, LossCause cause);
  /// Recovers what ran in this node or depends on it.
  void recover_node(double now, std::size_t index, const std::string& reason, LossCause cause);
  /// Starts an absent group when all of its nodes have joined.
  void admit_group(std::size_t group);
  void fail_group(double now, std::size_t group, Error error);
  /// Adopts the actors of the group with which its nodes joined, if they are complete and
  /// consistent; else ends them. Pre: its nodes and the RequestRouter's are connected.
  void adopt_group(std::size_t group);
  /// Why the actors found cannot be adopted; empty: they can.
  [[nodiscard]] std::string check_found(std::size_t group, const GroupRecord* record) const;
  [[nodiscard]] const GroupRecord* find_record(std::size_t group) const;
  [[nodiscard]] std::vector<ActorId> find_running(std::size_t group, const GroupRecord& record,
                                                  Role role) const;
  [[nodiscard]] ActorId find_worker(std::size_t group, std::size_t rank) const;
  [[nodiscard]] bool has_found(std::size_t group) const;
  void forget_found(std::size_t group);
  /// Stores the record of a serving group in its nodes, for the next Supervisor.
  void send_records(std::size_t group);
  void prepare_nodes(std::size_t group);
  /// Calls the next method on all workers. True: they are ready for steps.
  [[nodiscard]] bool advance_workers(std::size_t group);
  void load_model(std::size_t group);
  void ask_workers(std::size_t group, WorkerMethod method);
  void spawn_workers(std::size_t group);
  [[nodiscard]] Result<void> settle_model(GroupSlot& group) const;
  void spawn_role(std::size_t group, Role role);
  /// The next role of the group runs.
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
  int num_front_losses_ = 0;     ///< of RequestRouter and Frontend, since all were up
  bool front_waits_ = false;     ///< until the next check()

  std::vector<Watched> watched_;  ///< in the order of spawning
  bool starting_ = true;          ///< Start has not been answered
  bool resumed_ = false;          ///< another Supervisor has started the engine
  bool stopping_ = false;
  bool retiring_ = false;
  bool given_up_ = false;
  double checked_at_ = 0;  ///< 0: never
  double killed_at_ = 0;   ///< while stopping: when remaining processes are killed
};

}  // namespace troupe::supervision
