#pragma once
// What the HTTP server needs of the engine behind it.

#include <cstdint>
#include <functional>
#include <vector>

#include "messages/control.hpp"
#include "messages/ids.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Implemented by the Frontend, called by the server's threads at any time and from any of them: an
/// implementation must be thread-safe and must not block. Outputs travel the other way through
/// Server::deliver.
class EnginePort {
 public:
  virtual ~EnginePort() = default;

  /// The first of `count` consecutive ids that have never been given out. Pre: count >= 1.
  [[nodiscard]] virtual RequestId allocate_ids(std::int32_t count) = 0;

  /// For params.philox_key of a request: what its draws depend on if it brings no seed.
  [[nodiscard]] virtual std::uint64_t draw_key() = 0;

  /// Starts a request; its id comes from allocate_ids(request.params.n). Exactly one finished
  /// RequestOutput (or one with an error) must be delivered for it, unless it is aborted.
  virtual void submit(SubmitRequest submission) = 0;

  /// Ends requests whose clients are gone; `ids` are those of GenerateRequests (each stands for all
  /// its samples) and of RenderRequests. Outputs still under way are dropped by the server.
  virtual void abort(std::vector<RequestId> ids) = 0;

  /// Tokenises, renders or decodes. `reply` is called once, from any thread.
  virtual void render(RenderRequest request, std::function<void(RenderReply)> reply) = 0;

  /// Forgets cached content, between two steps. `reply` is called once, from any thread.
  virtual void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) = 0;

  using PauseReply = std::function<void(Result<PauseStatus>)>;
  /// Computes nothing more. `reply` is called once, from any thread, when nothing runs or it was
  /// resumed before.
  virtual void pause(PauseScheduler what, PauseReply reply) = 0;
  /// Goes on. `reply` as above.
  virtual void resume(PauseReply reply) = 0;
  virtual void ask_paused(PauseReply reply) = 0;

  /// Ends a group, when what runs in it has ended or its time is up. `reply` as above.
  virtual void drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) = 0;
  virtual void ask_topology(std::function<void(Result<TopologyStatus>)> reply) = 0;

  /// False while no engine is ready to serve; /health then says 503.
  [[nodiscard]] virtual bool healthy() const noexcept = 0;
};

}  // namespace troupe
