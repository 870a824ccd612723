#pragma once
// Lifetime and idle time of KV-cache blocks, which show operators whether the cache is too small.

#include <array>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/cache.hpp"

namespace troupe {

/// Samples random blocks from their allocation to the eviction of their content (vLLM's
/// --kv-cache-metrics). Called by the BlockPool; the owner sets the time before.
class BlockMetrics {
 public:
  /// Pre: 0 < sample_rate <= 1, the fraction of the blocks.
  BlockMetrics(double sample_rate, std::uint64_t seed) : sample_rate_(sample_rate), random_(seed) {}

  /// Seconds of a monotonic clock.
  void set_time(double now) noexcept { now_ = now; }

  void on_taken(BlockId block);
  void on_hit(BlockId block);
  void on_evicted(BlockId block);
  /// The cache was cleared: all samples are void.
  void clear();

  /// Samples that have ended since the last call, in order.
  [[nodiscard]] std::vector<BlockResidency> take_ended() { return std::exchange(ended_, {}); }

 private:
  struct Observed {
    double taken_at = 0;
    double used_at = 0;             ///< the last hit, or taken_at
    std::array<double, 4> hits_at;  ///< the last ones, a ring buffer
    std::size_t num_hits = 0;
  };

  double sample_rate_;
  double now_ = 0;
  std::mt19937_64 random_;
  std::unordered_map<BlockId, Observed> observed_;
  std::vector<BlockResidency> ended_;
};

}  // namespace troupe
