#pragma once
// For tests: in which order the emulation lets threads run.

#include <cstdint>

namespace troupe::cuda_emulation {

/// Of the threads that may run, the first in this order does, until it waits or ends: a thread (and
/// its warp) goes as far ahead of the others as the barriers let it. Blocks run one after the
/// other, in the same order. A kernel whose result depends on the order lacks a barrier.
enum class ThreadOrder : std::uint8_t {
  kForward,   ///< from the lowest index on
  kReversed,  ///< from the highest
  kRandom,    ///< a permutation, drawn anew at each barrier
};

/// For the launches of the calling thread from now on. At first kForward.
void set_thread_order(ThreadOrder order, std::uint32_t seed = 1) noexcept;

}  // namespace troupe::cuda_emulation
