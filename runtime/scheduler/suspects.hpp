#pragma once
// Which request makes steps fail.

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

#include "messages/ids.hpp"
#include "messages/model_runner_output.hpp"

namespace troupe {

/// Owns the requests that may be to blame for failing steps. When kMaxFailures steps in a row have
/// given no result, those of the last one are suspects: they are computed one at a time. A suspect
/// whose step fails while it runs alone is to blame; one that gets a token is cleared.
class Suspects {
 public:
  static constexpr int kMaxFailures = 2;

  /// The step of these requests gave no result. Returns the one that is to blame, if that is known:
  /// the others are cleared then.
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

  /// A step gave this result. A token needs all that the failed step had computed of the request.
  void record_result(const ModelRunnerOutput& result) {
    num_failures_ = 0;
    for (std::size_t i = 0; i < result.num_sampled.size() && !queue_.empty(); ++i) {
      if (result.num_sampled[i] > 0 && result.ids[i] == queue_.front()) queue_.pop_front();
    }
  }

  /// Before a step is planned: those at the front that have ended, has_ended(id), are not waited
  /// for.
  template <class HasEnded>
  void drop_ended(HasEnded&& has_ended) {
    while (!queue_.empty() && has_ended(queue_.front())) queue_.pop_front();
  }

  /// The suspect cannot be computed now: the others are not to wait for it. False: there is none.
  bool skip() {
    if (queue_.empty()) return false;
    queue_.pop_front();
    return true;
  }

  /// The one to be computed alone; none: all requests are computed.
  [[nodiscard]] std::optional<RequestId> current() const {
    return queue_.empty() ? std::nullopt : std::optional(queue_.front());
  }
  [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }
  [[nodiscard]] int num_failures() const noexcept { return num_failures_; }

 private:
  std::deque<RequestId> queue_;
  int num_failures_ = 0;  ///< of steps, in a row
};

}  // namespace troupe
