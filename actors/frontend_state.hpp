#pragma once
// The Frontend's state, and what its files have of each other: frontend.cpp is the actor,
// frontend_questions.cpp hands questions on to the RequestRouter.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "actors/frontend_port.hpp"
#include "actors/spawn.hpp"
#include "runtime/http/server.hpp"
#include "runtime/processors/request_journal.hpp"

namespace troupe::frontend {

/// The requests of the RequestRouter, and those that wait for it.
struct OwnJournal {
  RequestJournal requests;
  Coordinator coordinator{1};
  double wake_at = std::numeric_limits<double>::infinity();  ///< when WakeUp arrives
};

struct FrontendState {
  FrontendState() = default;
  static inline const char* name = "frontend";

  ServerConfig config;
  std::unique_ptr<EngineMetrics> metrics;
  std::unique_ptr<FrontendPort> port;
  std::unique_ptr<Server> server;       ///< none before Listen
  RequestRouterActor router;            ///< null: lost, and not yet replaced
  std::unique_ptr<OwnJournal> journal;  ///< null: the RequestRouter is in this process
  /// Questions that the RequestRouter has not answered; they fail when it is lost.
  std::map<std::uint64_t, std::function<void(const caf::error&)>> questions;
  std::uint64_t num_questions = 0;
  caf::typed_response_promise<Listening> listening;
  std::vector<EngineTotals> logged;  ///< by engine: as of the last statistics interval
  std::int32_t num_aborted = 0;
  caf::typed_response_promise<Drained> drained;

  void deliver(RequestOutputs outputs) const {
    if (server && !outputs.outputs.empty()) server->deliver(std::move(outputs));
  }
};

using Self = FrontendActor::stateful_pointer<FrontendState>;

// ---- frontend_questions.cpp: each is answered by the RequestRouter, and fails if that ends

[[nodiscard]] caf::result<RenderReply> ask_router(Self self, const RenderRequest& what);
[[nodiscard]] caf::result<CachesReset> ask_router(Self self, const ResetCaches& what);
[[nodiscard]] caf::result<CacheMoved> ask_router(Self self, const MoveCache& what);
[[nodiscard]] caf::result<PauseStatus> ask_router(Self self, const PauseScheduler& what);
[[nodiscard]] caf::result<PauseStatus> ask_router(Self self, const ResumeScheduler& what);
[[nodiscard]] caf::result<PauseStatus> ask_router(Self self, const AskPaused& what);
[[nodiscard]] caf::result<Status> ask_router(Self self, const DrainGroup& what);
[[nodiscard]] caf::result<TopologyStatus> ask_router(Self self, const AskTopology& what);
[[nodiscard]] caf::result<AdapterReply> ask_router(Self self, const LoadAdapter& what);
[[nodiscard]] caf::result<AdapterReply> ask_router(Self self, const UnloadAdapter& what);
[[nodiscard]] caf::result<CollectiveRpcReply> ask_router(Self self, const CollectiveRpc& what);

}  // namespace troupe::frontend
