#pragma once
// The commands of the Supervisor's core. Actors have numbers here: the actor that carries the
// commands out numbers them and keeps their handles.

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "messages/cache.hpp"
#include "messages/control.hpp"
#include "messages/node.hpp"
#include "messages/worker.hpp"

namespace troupe::supervision {

using ActorId = std::uint64_t;
inline constexpr ActorId kNobody = 0;

/// Run the process of this node. Answered with process_started or process_failed.
struct StartProcess {
  std::size_t node = 0;
  std::uint64_t life = 0;
};
/// At once (SIGKILL), even if it is stopped. Its end is reported as usual.
struct KillProcess {
  std::size_t node = 0;
};
struct BeatHeart {
  ActorId heart = kNobody;
};
struct SendLeave {
  ActorId node = kNobody;
  LeaveNode message;
};
/// Answered with node_prepared. Without an answer the reply is an error that says what failed, as
/// with all questions.
struct AskPrepare {
  ActorId actor = kNobody;
  std::size_t node = 0;
  std::uint64_t visit = 0;
  PrepareNode question;
};
/// Answered with worker_spawned.
struct AskWorker {
  ActorId node = kNobody;
  std::uint32_t incarnation = 0;
  SpawnWorker question;
};
/// Load the model on all workers. Answered with workers_replied.
struct AskLoad {
  ActorId executor = kNobody;
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  ParallelConfig parallel;  ///< except for the fields that depend on the rank
  std::vector<RankPlacement> ranks;
};
/// Another method of all workers. Answered with workers_replied.
struct AskWorkers {
  ActorId executor = kNobody;
  std::uint32_t group = 0;
  std::uint32_t incarnation = 0;
  WorkerMethod method;
};
/// Answered with role_spawned.
struct AskRole {
  ActorId node = kNobody;
  SpawnRole question;
  std::vector<ActorId> peers;
};
/// Answered with port_opened.
struct AskListen {
  ActorId frontend = kNobody;
  std::uint64_t life = 0;
};
/// The RequestRouter sends requests to the group from now on.
struct SendEngine {
  ActorId router = kNobody;
  EngineReady message;
  std::vector<ActorId> input_processors;
  ActorId output_processor = kNobody;
  ActorId scheduler = kNobody;
};
struct SendLoss {
  ActorId router = kNobody;
  EngineLost message;
};
struct SendHealth {
  ActorId router = kNobody;
  EngineHealth message;
};
/// For the next Supervisor.
struct SendRecord {
  ActorId node = kNobody;
  GroupRecord record;
};
/// To the Frontend's node: there is another RequestRouter.
struct SendRouter {
  ActorId node = kNobody;
  ActorId router = kNobody;
};
/// To a node of a group: the list of encoders.
struct SendEncoders {
  ActorId node = kNobody;
  EncodersChanged message;
  std::vector<ActorId> encoders;
};
/// Report its end (actor_down).
struct WatchActor {
  ActorId actor = kNobody;
  std::string name;
};
struct EndActor {
  ActorId actor = kNobody;
  bool at_once = true;  ///< else it is asked to end, and watched until then
};
/// Call confirm_loss after a short delay.
struct ConfirmLater {
  ConfirmLoss loss;
};
/// Answer Start: the engine accepts requests, or nothing runs.
struct AnswerStart {
  Started started;
  ActorId router = kNobody;
};
/// The RequestRouter of the start has been replaced.
struct AnnounceRouter {
  ActorId router = kNobody;
};
/// No engine will be started any more.
struct AnnounceFailure {
  std::string reason;
};
/// Everything has ended: end the Supervisor too.
struct Quit {
  bool clean = true;
};

using Command = std::variant<StartProcess, KillProcess, BeatHeart, SendLeave, AskPrepare, AskWorker,
                             AskLoad, AskWorkers, AskRole, AskListen, SendEngine, SendLoss,
                             SendHealth, SendRecord, SendRouter, SendEncoders, WatchActor, EndActor,
                             ConfirmLater, AnswerStart, AnnounceRouter, AnnounceFailure, Quit>;

}  // namespace troupe::supervision
