#pragma once
// The Supervisor's state. supervisor.cpp passes events to the core, supervisor_commands.cpp carries
// out its commands, of which supervisor_questions.cpp has the questions.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/engine_settings.hpp"
#include "actors/module.hpp"
#include "actors/network.hpp"
#include "actors/server_settings.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/base/child_process.hpp"
#include "runtime/config/node_secrets.hpp"
#include "runtime/supervision/supervision.hpp"
#include "runtime/transport/local_secret.hpp"
#include "runtime/transport/supervisor_file.hpp"

namespace troupe::supervisor {

using namespace supervision;

/// The actors behind the numbers that the core uses.
class Handles {
 public:
  /// The same actor always has the same number.
  ActorId add(const caf::strong_actor_ptr& actor) {
    if (const ActorId known = find(caf::actor_cast<caf::actor_addr>(actor)); known != kNobody)
      return known;
    actors_.emplace(++last_, actor);
    return last_;
  }
  std::vector<ActorId> add_all(const ActorHandles& handles) {
    std::vector<ActorId> ids;
    for (const caf::strong_actor_ptr& handle : handles) ids.push_back(add(handle));
    return ids;
  }
  [[nodiscard]] ActorId find(const caf::actor_addr& address) const {
    const auto found = std::find_if(actors_.begin(), actors_.end(), [&](const auto& entry) {
      return caf::actor_cast<caf::actor_addr>(entry.second) == address;
    });
    return found == actors_.end() ? kNobody : found->first;
  }
  /// Null: forgotten.
  template <class Handle = caf::strong_actor_ptr>
  [[nodiscard]] Handle get(ActorId id) const {
    const auto found = actors_.find(id);
    return found == actors_.end() ? Handle{} : caf::actor_cast<Handle>(found->second);
  }
  template <class Handle = caf::strong_actor_ptr>
  [[nodiscard]] std::vector<Handle> get_all(const std::vector<ActorId>& ids) const {
    std::vector<Handle> handles;
    for (const ActorId id : ids) handles.push_back(get<Handle>(id));
    return handles;
  }
  /// Forgets the actors that no command can name any more.
  void forget_others(const Supervision& core) {
    std::erase_if(actors_, [&](const auto& entry) { return !core.knows(entry.first); });
  }

 private:
  std::map<ActorId, caf::strong_actor_ptr> actors_;
  ActorId last_ = kNobody;
};

struct SupervisorState {
  SupervisorState() = default;
  static inline const char* name = "supervisor";

  StartOptions start;
  std::shared_ptr<EngineHandles> engine;
  SamplingDefaults sampling_defaults;
  AnswerDefaults answer_defaults;
  std::unique_ptr<Supervision> core;  ///< null before Start
  Handles handles;

  std::unique_ptr<Network> network;  ///< null: a single process
  std::optional<LocalSecret> local_secret;
  SupervisorRecord record;  ///< for the next Supervisor, should this process die
  std::optional<SupervisorFile> file;
  std::optional<SupervisorRecord> predecessor;
  NodeSecrets secrets;     ///< for the processes that are started here
  std::uint16_t port = 0;  ///< for nodes to join
  std::map<std::size_t, std::unique_ptr<ChildProcess>> processes;  ///< by node

  caf::typed_response_promise<Started> started;
  caf::typed_response_promise<Stopped> stopped;
  ActorId retiring = kNobody;  ///< the Frontend that is being drained

  /// Counts the Supervisors of the topology.
  [[nodiscard]] std::uint64_t epoch() const { return predecessor ? predecessor->epoch + 1 : 0; }
  /// The port of the predecessor's Frontend, or of the server that this one replaces; 0: none.
  [[nodiscard]] std::uint16_t http_port_before() const {
    return predecessor ? predecessor->http_port : start.replaces_port;
  }
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

/// The actor behind a number; null: forgotten.
template <class Handle>
[[nodiscard]] Handle actor_of(Self self, ActorId id) {
  return state(self).handles.template get<Handle>(id);
}

/// Carries out the commands of the core, and those that follow from them at once.
void carry_out(Self self);

/// To be called when the process of a node has ended: the Supervisor gets NodeExited.
[[nodiscard]] std::function<void(ProcessEnd)> tell_end(Self self, std::size_t node,
                                                       std::uint64_t life);
/// Writes the record for the next Supervisor, after a change.
void write_record(SupervisorState& supervisor);

// supervisor_questions.cpp

void run(Self self, const AskPrepare& what);
void run(Self self, const AskWorker& what);
void run(Self self, const AskLoad& what);
void run(Self self, const AskWorkers& what);
void run(Self self, const AskRole& what);
void run(Self self, const AskListen& what);

}  // namespace troupe::supervisor
