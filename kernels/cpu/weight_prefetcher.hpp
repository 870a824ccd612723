#pragma once
// Software prefetch of weights.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// Which weights to prefetch while others are multiplied. Hardware prefetchers stop at the end of a
/// page and cannot know where a thread continues after its chunk.
class WeightPrefetcher {
 public:
  /// For weights that are used once: prefetches ahead. `end`: of the chunk; next_chunk: the chunk
  /// that the thread is likely to get next.
  TROUPE_INLINE WeightPrefetcher(const std::byte* end, const std::byte* next_chunk)
      : end_(end), distance_(next_chunk - end + kDistance) {}
  /// For weights that several blocks of rows use: from the second block on they are cached, and the
  /// memory bus would be idle. So each block prefetches a part of what comes next, `distance` bytes
  /// from here.
  TROUPE_INLINE WeightPrefetcher(std::int64_t distance, std::int64_t block, std::int64_t num_blocks)
      : distance_(distance), num_blocks_(num_blocks), until_turn_(block + 1) {}

  /// Called with all weights in order, num_bytes after num_bytes.
  TROUPE_INLINE void fetch(const std::byte* at, std::int64_t num_bytes) {
    if (num_blocks_ == 1) {
      const std::byte* first = at + (end_ - at > kDistance ? kDistance : distance_);
      TROUPE_UNROLL
      for (std::int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(first + i, 0, 2);
      return;
    }
    // Line by line, for even memory traffic.
    TROUPE_UNROLL
    for (std::int64_t i = 0; i < num_bytes; i += 64) {
      if (--until_turn_ != 0) continue;
      until_turn_ = num_blocks_;
      __builtin_prefetch(at + distance_ + i, 0, 2);
    }
  }

 private:
  /// More than a thread reads during one memory latency; less where the hardware prefetcher runs
  /// further ahead, as on AMD.
#if defined(TROUPE_BF16_DOT)
  static constexpr std::int64_t kDistance = std::int64_t{4} * 1024;
#else
  static constexpr std::int64_t kDistance = std::int64_t{12} * 1024;
#endif

  const std::byte* end_ = nullptr;
  std::int64_t distance_;  ///< of a single block: near the end
  std::int64_t num_blocks_ = 1;
  std::int64_t until_turn_ = 1;
};

/// Memory to prefetch during a computation: the lines of each step.
struct Prefetch {
  const std::byte* first = nullptr;
  std::int64_t lines_per_step = 0;
  TROUPE_INLINE void fetch(std::int64_t step) const {
    const std::byte* line = first + step * lines_per_step * 64;
    for (std::int64_t i = 0; i < lines_per_step; ++i) __builtin_prefetch(line + i * 64, 0, 2);
  }
};

}  // namespace troupe::TROUPE_ISA
