#pragma once
// How long the blocks of the KV cache keep their content, and how long they lie idle: what tells an
// operator whether the cache is too small.

#include <array>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/cache.hpp"

namespace troupe {

/// Observes a random sample of the blocks from being given out until their content makes way
/// (vLLM's --kv-cache-metrics). Told by the BlockPool; the owner sets the time before.
class BlockMetrics {
 public:
  /// Pre: 0 < sample_rate <= 1, the share of the blocks.
  BlockMetrics(double sample_rate, std::uint64_t seed) : sample_rate_(sample_rate), random_(seed) {}

  /// Seconds of a monotonic clock.
  void set_time(double now) noexcept { now_ = now; }

  void on_taken(BlockId block);
  void on_hit(BlockId block);
  void on_evicted(BlockId block);
  /// The cache was emptied: all observations are void.
  void clear();

  /// Observations that have ended since the last call, in order.
  [[nodiscard]] std::vector<BlockResidency> take_ended() { return std::exchange(ended_, {}); }

 private:
  struct Observed {
    double taken_at = 0;
    double used_at = 0;             ///< the last hit, or taken_at
    std::array<double, 4> hits_at;  ///< the last ones, a ring
    std::size_t num_hits = 0;
  };

  double sample_rate_;
  double now_ = 0;
  std::mt19937_64 random_;
  std::unordered_map<BlockId, Observed> observed_;
  std::vector<BlockResidency> ended_;
};

}  // namespace troupe
