#pragma once
// The rate at which the engine completes samples, for Retry-After of rejected requests.

#include <cstdint>
#include <mutex>

namespace troupe {

/// An exponentially weighted rate of samples that left the engine. Shared by the services of one
/// server; thread-safe. Times are seconds of one monotonic clock.
class CompletionRate {
 public:
  static constexpr double kMemorySeconds = 30;  ///< time constant of the decay
  static constexpr std::int64_t kMaxRetrySeconds = 600;

  void observe(std::int64_t num_samples, double now);
  /// Samples per second; 0 before the second observation.
  [[nodiscard]] double per_second(double now) const;
  /// Seconds until `num_samples` more will have left, in [1, kMaxRetrySeconds]: the value of the
  /// Retry-After header. 1 if there is no rate yet.
  [[nodiscard]] std::int64_t retry_after_s(std::int64_t num_samples, double now) const;

 private:
  mutable std::mutex mutex_;
  double weight_ = 0;  ///< samples, decayed to last_
  double first_ = 0;
  double last_ = 0;
  bool started_ = false;
};

}  // namespace troupe
