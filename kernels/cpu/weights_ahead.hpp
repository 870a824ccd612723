#pragma once
// Weights on their way to the cache while others are multiplied.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// Which weights to ask for while others are multiplied. CPUs look ahead by themselves, but not
/// past the end of a page, and where a chunk ends its thread goes on elsewhere.
struct WeightsAhead {
  /// More than a thread reads while memory answers; less where CPUs look further ahead by
  /// themselves, as AMD's do.
#if defined(TROUPE_BF16_DOT)
  static constexpr std::int64_t kDistance = std::int64_t{4} * 1024;
#else
  static constexpr std::int64_t kDistance = std::int64_t{12} * 1024;
#endif

  const std::byte* end = nullptr;  ///< of the chunk
  std::int64_t jump = -kDistance;  ///< from there to the chunk that the thread is likely to get

  /// How far from the weights at `at` those are that it is time to ask for.
  [[nodiscard]] TROUPE_INLINE std::int64_t offset(const std::byte* at) const {
    return end - at > kDistance ? kDistance : kDistance + jump;
  }
  /// Asks for num_bytes from `first` on.
  TROUPE_INLINE static void fetch(const std::byte* first, std::int64_t num_bytes) {
    TROUPE_UNROLL
    for (std::int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(first + i, 0, 2);
  }
};

/// Memory to ask for while something else is multiplied: the lines of each step.
struct Prefetch {
  const std::byte* first = nullptr;
  std::int64_t lines_per_step = 0;
  TROUPE_INLINE void fetch(std::int64_t step) const {
    const std::byte* line = first + step * lines_per_step * 64;
    for (std::int64_t i = 0; i < lines_per_step; ++i) __builtin_prefetch(line + i * 64, 0, 2);
  }
};

}  // namespace troupe::TROUPE_ISA
