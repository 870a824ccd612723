#include "runtime/http/completion_rate.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {

void CompletionRate::observe(std::int64_t num_samples, double now) {
  const std::lock_guard lock(mutex_);
  if (!started_) {
    // The rate starts with the next sample.
    started_ = true;
    first_ = last_ = now;
    return;
  }
  weight_ = weight_ * std::exp((last_ - now) / kMemorySeconds) + static_cast<double>(num_samples);
  last_ = std::max(last_, now);
}

double CompletionRate::per_second(double now) const {
  const std::lock_guard lock(mutex_);
  // The weight at one sample per second since the start.
  const double unit = kMemorySeconds * -std::expm1((first_ - now) / kMemorySeconds);
  if (!started_ || unit <= 0) return 0;
  return weight_ * std::exp((last_ - now) / kMemorySeconds) / unit;
}

std::int64_t CompletionRate::retry_after_s(std::int64_t num_samples, double now) const {
  const double rate = per_second(now);
  if (rate <= 0) return 1;
  const double seconds = std::ceil(static_cast<double>(num_samples) / rate);
  return static_cast<std::int64_t>(std::clamp(seconds, 1.0, static_cast<double>(kMaxRetrySeconds)));
}

}  // namespace troupe
