#pragma once
// The interface of the HTTP server's threads, implemented by messages to the Frontend.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "actors/deadlines.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/http/engine_port.hpp"
#include "runtime/processors/request_keys.hpp"

namespace troupe {

/// Thread-safe: counters, a flag, and messages. The Frontend allocates the ids.
class FrontendPort final : public EnginePort {
 public:
  explicit FrontendPort(caf::actor_system& system) : system_(system) {}
  /// Both are called before the server starts. Later calls have no effect: the first key stream
  /// continues.
  void set_keys(const KeyStream& keys) {
    if (!keys_) keys_.emplace(keys);
  }
  [[nodiscard]] bool has_keys() const { return keys_.has_value(); }
  void connect(FrontendActor frontend) { frontend_ = std::move(frontend); }
  void set_healthy(bool healthy) { healthy_ = healthy; }
  void set_adapters(AdapterList adapters) {
    adapters_ = std::make_shared<const AdapterList>(std::move(adapters));
  }

  RequestId allocate_ids(std::int32_t count) override;
  std::uint64_t draw_key() override;
  void submit(SubmitRequest submission) override;
  void abort(std::vector<RequestId> ids) override;
  void render(RenderRequest request, std::function<void(RenderReply)> reply) override;
  void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) override;
  void move_cache(MoveCache what, std::function<void(Result<CacheMoved>)> reply) override;
  void pause(PauseScheduler what, PauseReply reply) override;
  void resume(PauseReply reply) override;
  void ask_paused(PauseReply reply) override;
  void drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) override;
  void ask_topology(std::function<void(Result<TopologyStatus>)> reply) override;
  void load_adapter(LoadAdapter what, AdapterCallback reply) override;
  void unload_adapter(UnloadAdapter what, AdapterCallback reply) override;
  void call_workers(CollectiveRpc what,
                    std::function<void(Result<CollectiveRpcReply>)> reply) override;
  [[nodiscard]] std::shared_ptr<const AdapterList> adapters() const override { return adapters_; }
  [[nodiscard]] bool healthy() const noexcept override { return healthy_; }

 private:
  template <class Answer, class Question>
  void ask_frontend(std::chrono::nanoseconds deadline, Question question,
                    std::function<void(Result<Answer>)> reply);

  caf::actor_system& system_;
  FrontendActor frontend_;
  std::optional<RequestKeys> keys_;
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<bool> healthy_{true};
  std::atomic<std::shared_ptr<const AdapterList>> adapters_;
};

}  // namespace troupe
