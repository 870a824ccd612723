#pragma once
// For tests: the order in which the emulation runs threads.

#include <cstdint>

namespace troupe::cuda_emulation {

/// Of the ready threads, the first in this order runs until it waits or ends: a thread (and its
/// warp) runs as far ahead of the others as barriers permit. Blocks run one after the other, in the
/// same order. A kernel whose result depends on the order lacks a barrier.
enum class ThreadOrder : std::uint8_t {
  kForward,   ///< from the lowest index on
  kReversed,  ///< from the highest
  kRandom,    ///< a new permutation at each barrier
};

/// For further launches of the calling thread. Default: kForward.
void set_thread_order(ThreadOrder order, std::uint32_t seed = 1) noexcept;

}  // namespace troupe::cuda_emulation
