#pragma once
// What the HTTP server's threads call, as messages to the Frontend.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "actors/deadlines.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/http/engine_port.hpp"

namespace troupe {

inline constexpr std::chrono::minutes kPauseDeadline{10};  ///< requests may run to their end before

/// Thread-safe: a counter, a flag, and messages.
class FrontendPort final : public EnginePort {
 public:
  FrontendPort(caf::actor_system& system, std::uint64_t seed);
  void connect(FrontendActor frontend) { frontend_ = std::move(frontend); }
  void set_healthy(bool healthy) { healthy_ = healthy; }

  RequestId allocate_ids(std::int32_t count) override;
  std::uint64_t draw_key() override;
  void submit(SubmitRequest submission) override;
  void abort(std::vector<RequestId> ids) override;
  void render(RenderRequest request, std::function<void(RenderReply)> reply) override;
  void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) override;
  void pause(PauseScheduler what, PauseReply reply) override;
  void resume(PauseReply reply) override;
  void ask_paused(PauseReply reply) override;
  void drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) override;
  void ask_topology(std::function<void(Result<TopologyStatus>)> reply) override;
  [[nodiscard]] bool healthy() const noexcept override { return healthy_; }

 private:
  template <class Answer, class Question>
  void ask_frontend(std::chrono::nanoseconds deadline, Question question,
                    std::function<void(Result<Answer>)> reply);

  caf::actor_system& system_;
  FrontendActor frontend_;
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> num_keys_{0};
  std::atomic<std::uint64_t> next_id_;
  std::atomic<bool> healthy_{true};
};

}  // namespace troupe
