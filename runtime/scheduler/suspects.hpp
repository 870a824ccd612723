#pragma once
// Finds the request that makes steps fail.

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

#include "messages/ids.hpp"
#include "messages/model_runner_output.hpp"

namespace troupe {

/// Owns the requests that may have caused failed steps. When kMaxFailures consecutive steps have
/// failed, the requests of the last one are suspects: they are computed one at a time. A suspect
/// whose step fails while it runs alone is the cause; one that gets a token is cleared.
class Suspects {
 public:
  static constexpr int kMaxFailures = 2;

  /// The step of these requests failed. Returns the request that caused it, if known: the others
  /// are cleared then.
  std::optional<RequestId> record_failure(std::span<const RequestId> ids) {
    ++num_failures_;
    if (ids.size() == 1 && !queue_.empty()) {
      queue_.clear();
      num_failures_ = 0;
      return ids.front();
    }
    if (num_failures_ >= kMaxFailures) queue_.assign(ids.begin(), ids.end());
    return std::nullopt;
  }

  /// The result of a step. A token requires everything that the failed step had computed of the
  /// request.
  void record_result(const ModelRunnerOutput& result) {
    num_failures_ = 0;
    for (std::size_t i = 0; i < result.num_sampled.size() && !queue_.empty(); ++i) {
      if (result.num_sampled[i] > 0 && result.ids[i] == queue_.front()) queue_.pop_front();
    }
  }

  /// Before a step is planned: drops finished requests, has_ended(id), from the front.
  template <class HasEnded>
  void drop_ended(HasEnded&& has_ended) {
    while (!queue_.empty() && has_ended(queue_.front())) queue_.pop_front();
  }

  /// The suspect cannot be computed now: do not wait for it. False: there is none.
  bool skip() {
    if (queue_.empty()) return false;
    queue_.pop_front();
    return true;
  }

  /// The suspect to be computed alone; nullopt: all requests are computed.
  [[nodiscard]] std::optional<RequestId> current() const {
    return queue_.empty() ? std::nullopt : std::optional(queue_.front());
  }
  [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }
  [[nodiscard]] int num_failures() const noexcept { return num_failures_; }

 private:
  std::deque<RequestId> queue_;
  int num_failures_ = 0;  ///< consecutive failed steps
};

}  // namespace troupe
