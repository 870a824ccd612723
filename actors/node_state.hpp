#pragma once
// The node's state, and what node_roles.cpp and node_workers.cpp do for node.cpp: starting the
// actors of its roles.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/engine_settings.hpp"
#include "actors/server_settings.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/supervision/node_watch.hpp"

namespace troupe {

class GrammarCache;
class GrammarPool;
class RemoteOutputs;

namespace node {

/// Shared by the node and its HeartActor.
struct Pulse {
  std::atomic<std::int64_t> heard_ns{steady_ns()};       ///< when the last Heartbeat arrived
  std::vector<std::shared_ptr<WorkerProgress>> workers;  ///< group by group, rank by rank

  explicit Pulse(std::size_t num_workers) {
    for (std::size_t i = 0; i < num_workers; ++i)
      workers.push_back(std::make_shared<WorkerProgress>());
  }
};

/// The latest actors of a role.
struct RoleActors {
  ActorHandles handles;
  std::uint32_t incarnation = 0;  ///< of the group
  std::uint64_t life = 0;         ///< of the RequestRouter
};

/// What the node runs of one group.
struct GroupActors {
  KVEventPublisherActor kv_event_publisher;  ///< null: events are not published
  std::array<RoleActors, kNumRoles> actors;
  std::map<std::int32_t, caf::strong_actor_ptr> workers;  ///< by rank
  /// By rank: the recipients of Workers whose Executor is in another process of the host.
  std::map<std::int32_t, caf::strong_actor_ptr> remote_executors;
  std::optional<GroupRecord> record;  ///< for the next Supervisor
  /// The latest Scheduler's, kept so that the next one finds what it shares within the process.
  std::shared_ptr<ECConnector> ec_connector;
};

/// Numbers the actors for the core.
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
  SupervisorLink link;  ///< empty in a single process, where the Supervisor ends the node
  std::unique_ptr<supervision::NodeWatch> watch;
  ActorNumbers numbers;
  bool is_member = false;   ///< a Supervisor has accepted it
  std::uint64_t epoch = 0;  ///< of the Supervisor that accepted the node last
  bool prepared = false;    ///< except for the tokenizer
  bool has_tokenizer = false;
  std::shared_ptr<Pulse> pulse;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<GrammarCache> grammars;  ///< of all groups; null: not needed so far
  std::shared_ptr<GrammarPool> grammar_pool;
  GenerationConfig generation;
  SamplingDefaults sampling;
  AnswerDefaults answers;
  std::map<std::uint32_t, GroupActors> groups;  ///< what they share is in group 0
  EncoderRouterActor encoder_router;            ///< null: no encoders, or not used here
  std::shared_ptr<std::atomic<bool>> released;  ///< set when the Supervisor does not expect it back
};

using Self = NodeActor::stateful_pointer<NodeState>;

template <class Handle>
caf::strong_actor_ptr pointer(const Handle& actor) {
  return caf::actor_cast<caf::strong_actor_ptr>(actor);
}

inline void end(const caf::strong_actor_ptr& actor) {
  caf::anon_send_exit(caf::actor_cast<caf::actor>(actor), caf::exit_reason::kill);
}

/// Loads what is the same for every incarnation of the engine: the tokenizer, or all else.
[[nodiscard]] Result<void> prepare(Self self, bool read_tokenizer);
/// The actors of any role but kEncoder; `handles` are those of its peers.
[[nodiscard]] Result<ActorHandles> spawn_role(Self self, const SpawnRole& what,
                                              const ActorHandles& handles);

// node_workers.cpp

[[nodiscard]] caf::result<Status, ActorHandles> start_worker(Self self, const SpawnWorker& what);
/// Answers SpawnRole when the encoder has been loaded.
[[nodiscard]] caf::result<Status, ActorHandles> start_encoder(Self self, const SpawnRole& what);
/// Connects a Worker to the rings of its Executor. A Worker whose rings cannot be opened would
/// never receive a step, so it ends with the reason.
void take_rings(Self self, const OpenRings& open);
/// Where the outputs of separate encoders come from; null without them.
[[nodiscard]] std::shared_ptr<RemoteOutputs> remote_outputs(Self self);

}  // namespace node
}  // namespace troupe
