#pragma once
// The HTTP server's interface to the engine.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "messages/control.hpp"
#include "messages/ids.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Implemented by the Frontend, called by the server's threads: an implementation must be
/// thread-safe and must not block. Outputs come back through Server::deliver.
class EnginePort {
 public:
  virtual ~EnginePort() = default;

  /// The first of `count` consecutive ids, each used once. Pre: count >= 1.
  [[nodiscard]] virtual RequestId allocate_ids(std::int32_t count) = 0;

  /// For params.philox_key of a request: seeds the sampling of requests without a seed.
  [[nodiscard]] virtual std::uint64_t draw_key() = 0;

  /// Starts a request; its id comes from allocate_ids(request.params.n). Exactly one finished
  /// RequestOutput (or one with an error) must be delivered for it, unless it is aborted.
  virtual void submit(SubmitRequest submission) = 0;

  /// Aborts requests of disconnected clients; `ids` are those of GenerateRequests (each for all its
  /// samples) and of RenderRequests. The server drops outputs that still arrive.
  virtual void abort(std::vector<RequestId> ids) = 0;

  /// Tokenizes, renders or detokenizes. `reply` is called once, from any thread.
  virtual void render(RenderRequest request, std::function<void(RenderReply)> reply) = 0;

  /// Clears caches, between two steps. `reply` is called once, from any thread.
  virtual void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) = 0;

  /// Copies what the KV connector has stored to files, or takes them in. `reply` as above.
  virtual void move_cache(MoveCache what, std::function<void(Result<CacheMoved>)> reply) = 0;

  using PauseReply = std::function<void(Result<PauseStatus>)>;
  /// Pauses the engine. `reply` is called once, from any thread, when no request runs or the engine
  /// was resumed.
  virtual void pause(PauseScheduler what, PauseReply reply) = 0;
  /// Resumes the engine. `reply` as above.
  virtual void resume(PauseReply reply) = 0;
  virtual void ask_paused(PauseReply reply) = 0;

  /// Ends a group when its requests have finished or the timeout has passed. `reply` as above.
  virtual void drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) = 0;
  virtual void ask_topology(std::function<void(Result<TopologyStatus>)> reply) = 0;

  using AdapterCallback = std::function<void(Result<AdapterReply>)>;
  /// Load an adapter in all groups, or take its name away. `reply` as above.
  virtual void load_adapter(LoadAdapter what, AdapterCallback reply) = 0;
  virtual void unload_adapter(UnloadAdapter what, AdapterCallback reply) = 0;
  /// Calls a method on the workers of all groups; not one that starts an engine. `reply` as above.
  virtual void call_workers(CollectiveRpc what,
                            std::function<void(Result<CollectiveRpcReply>)> reply) = 0;
  /// Those that requests may name, by name; null: no engine has told yet, or there can be none.
  [[nodiscard]] virtual std::shared_ptr<const AdapterList> adapters() const = 0;

  /// False while no engine is ready; /health then returns 503.
  [[nodiscard]] virtual bool healthy() const noexcept = 0;
};

}  // namespace troupe
