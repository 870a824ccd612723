#pragma once
// The RequestRouter's state, and its functions by file: request_router.cpp has clients and
// requests, router_groups.cpp the engines behind it, router_questions.cpp what it asks them for
// others.

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/spawn.hpp"
#include "runtime/processors/adapter_registry.hpp"
#include "runtime/processors/coordinator.hpp"
#include "runtime/processors/request_clients.hpp"
#include "runtime/processors/request_journal.hpp"
#include "runtime/processors/request_keys.hpp"

namespace troupe::router {

/// The engine of a group, which requests go to.
struct EngineLink {
  bool ready = false;  ///< its outputs come here
  std::vector<InputProcessorActor> input_processors;
  OutputProcessorActor output_processor;
  SchedulerActor scheduler;

  [[nodiscard]] const InputProcessorActor& input_processor(std::uint64_t number) const {
    return input_processors[number % input_processors.size()];
  }
  /// False for the actors of an engine that has been replaced.
  [[nodiscard]] bool has(const caf::strong_actor_ptr& actor) const {
    const auto is_sender = [&](const auto& handle) {
      return caf::actor_cast<caf::strong_actor_ptr>(handle) == actor;
    };
    return is_sender(output_processor) ||
           std::any_of(input_processors.begin(), input_processors.end(), is_sender);
  }
};

/// A question to an InputProcessor, asked again if that one's engine is replaced. It ends with the
/// answer, or when its client disconnects.
struct PendingRender {
  RenderRequest request;
  caf::typed_response_promise<RenderReply> promise;
  int num_tries = 0;
  std::optional<std::size_t> group = std::nullopt;  ///< that was asked; none: waiting for one
};

/// A question to an actor of a group that has not been answered. If its engine is lost, the actor
/// may end without an answer.
struct OpenQuestion {
  caf::actor_addr actor;
  std::function<void(std::string reason)> on_lost;
};

/// A group that is sent no more requests.
struct GroupDrain {
  caf::typed_response_promise<Status> promise;
  std::uint64_t number = 0;  ///< tells its timeout from an earlier one
};

/// An actor that has submitted requests.
struct ClientLink {
  RequestClientActor actor;
  FrontendActor frontend;  ///< null: another client, which receives only outputs of its requests
};

/// Owns the journal of unfinished requests, and the links to clients and groups.
struct RouterState {
  RouterState() = default;
  static inline const char* name = "request_router";

  std::uint64_t seed = 0;
  std::uint64_t life = 0;
  RequestClients book;
  std::map<RequestClients::Client, ClientLink> clients;
  std::map<caf::actor_addr, RequestClients::Client> client_numbers;
  std::optional<RequestKeys> keys;                ///< for clients that do not draw their own
  bool healthy = true;                            ///< as the last RouterReport said
  SupervisorActor supervisor;                     ///< the sender of EngineReady
  std::vector<std::optional<EngineLink>> groups;  ///< none: lost, or not started yet
  /// The OutputProcessor of the engine that each group lost last. For comparison only: it may have
  /// ended.
  std::vector<caf::actor_addr> lost_engines;
  std::optional<Error> failure;     ///< permanent: no engine will be started
  std::optional<PauseMode> paused;  ///< applies to engines that start later, too
  std::unique_ptr<RequestJournal> journal;
  std::unique_ptr<Coordinator> coordinator;
  std::map<std::uint32_t, GroupDrain> draining;  ///< by group
  std::uint64_t num_drains = 0;
  double wake_at = std::numeric_limits<double>::infinity();  ///< when WakeUp arrives
  std::map<RequestId, PendingRender> renders;
  std::map<std::uint64_t, OpenQuestion> questions;
  std::uint64_t num_questions = 0;
  bool enable_adapters = false;
  AdapterRegistry adapters;
  bool refuses = false;  ///< new requests, during shutdown
  std::int32_t num_aborted = 0;
  std::vector<caf::typed_response_promise<Drained>> drained;

  /// The group that the actor belongs to; none if that one has been lost.
  [[nodiscard]] std::optional<std::size_t> group_of(const caf::strong_actor_ptr& actor) const {
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group] && groups[group]->has(actor)) return group;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool has_ready_group() const {
    return std::any_of(groups.begin(), groups.end(),
                       [](const auto& link) { return link && link->ready; });
  }
  /// Any that can be asked, another one for each number. Pre: has_ready_group().
  [[nodiscard]] std::size_t any_group(std::uint64_t number) const {
    std::size_t group = number % groups.size();
    while (!groups[group] || !groups[group]->ready) group = (group + 1) % groups.size();
    return group;
  }
};

using Self = RequestRouterActor::stateful_pointer<RouterState>;

// ---- request_router.cpp: clients and their requests

/// The client that sent the current message; none: an anonymous message, which gets no answer.
[[nodiscard]] std::optional<RequestClients::Client> sender_of(Self self);
/// Sends the outputs to the clients of their requests; every Frontend gets the statistics.
void hand_out(Self self, RequestOutputs outputs);
/// To every Frontend.
void report(Self self, const RouterReport& news);
/// Sends the groups what waits for them, as far as they have room.
void submit_waiting(Self self);
/// Answers Drain when no request is left.
void answer_drains(Self self);

// ---- router_groups.cpp: the engines of the groups

void take_engine(Self self, const EngineReady& ready, EngineLink engine);
/// The group's requests continue in another one, or wait for its next engine.
void lose_engine(Self self, const EngineLost& lost);
[[nodiscard]] caf::result<Status> drain_group(Self self, const DrainGroup& what);
void end_drained_group(Self self, std::uint32_t group);
/// Ends the draining groups that have no request left.
void end_idle_groups(Self self);

// ---- router_questions.cpp: questions to the groups on behalf of others

[[nodiscard]] caf::result<RenderReply> take_render(Self self, RenderRequest& request);
void end_render(Self self, RequestId id, const Error& error);
void end_renders(Self self, const Error& error);
/// Asks again for the renders that wait, if a group is ready.
void try_waiting_renders(Self self);

[[nodiscard]] caf::result<CachesReset> reset_caches(Self self, const ResetCaches& what);
[[nodiscard]] caf::result<CacheMoved> move_cache(Self self, const MoveCache& what);
[[nodiscard]] caf::result<PauseStatus> pause(Self self, const PauseScheduler& what);
[[nodiscard]] caf::result<PauseStatus> resume(Self self, const ResumeScheduler& what);
[[nodiscard]] caf::result<PauseStatus> ask_paused(Self self, const AskPaused& what);
/// Pauses a new engine as the others are, before it gets requests.
void pause_again(Self self, const EngineLink& engine);
/// Ends the questions to a lost engine's actors.
void end_questions(Self self, const EngineLink& engine, const std::string& reason);

[[nodiscard]] caf::result<AdapterReply> load_adapter(Self self, const LoadAdapter& what);
[[nodiscard]] caf::result<AdapterReply> unload_adapter(Self self, const UnloadAdapter& what);
[[nodiscard]] caf::result<CollectiveRpcReply> call_workers(Self self, const CollectiveRpc& what);
/// Loads into a new engine the adapters that the others have, and registers those of its options.
void match_adapters(Self self, const SchedulerActor& scheduler);

}  // namespace troupe::router
