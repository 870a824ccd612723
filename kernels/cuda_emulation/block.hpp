#pragma once
// Runs the blocks of a kernel on the CPU: each thread of a block is a fiber (Boost.Context), and
// all fibers of a block share the thread that launches the kernel.
//
// Errors of a kernel are detected and reported with file and line, where a GPU would hang or
// compute something else:
// - a barrier that not all threads of the block reach, or that they reach at different lines;
// - shuffles and votes of a warp with a lane that has ended, is not in the mask, or executes
//   another operation;
// - writes outside of a shared variable, or of device memory (device_memory.hpp); with the address
//   sanitizer also reads, at the line that does it;
// - dependence on the order of threads (thread_order.hpp), or on uninitialised memory: shared
//   memory is NaN at the start of each block, and so are new local variables (the compiler's
//   -ftrivial-auto-var-init) and device memory.
// The first error ends the launch.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

namespace troupe::cuda_emulation {

using Place = std::source_location;

struct uint3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};
struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;
  constexpr dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)
      : x(x_in), y(y_in), z(z_in) {}
};

/// The indices of the running thread.
inline constinit thread_local uint3 threadIdx;
inline constinit thread_local uint3 blockIdx;
inline constinit thread_local dim3 blockDim;
inline constinit thread_local dim3 gridDim;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t dynamic_shared_bytes = 0;
};

/// Runs `kernel` once for each thread of the grid. Returns the error; empty: none. Pre: the limits
/// of a device (1 to 1024 threads, no empty grid).
std::string run_grid(const LaunchShape& shape, const std::function<void()>& kernel);

// The rest is called by the kernel's threads.

/// __syncthreads
void block_barrier(const Place& place);

enum class WarpOperation : std::uint8_t { kSync, kShuffle, kBallot };

/// Waits for all lanes of the mask, which must execute the same operation. kShuffle: returns the
/// value of lane `source`; kBallot: a bit for each lane whose value is not 0.
std::uint64_t warp_exchange(WarpOperation operation, unsigned mask, std::uint64_t value,
                            unsigned source, const Place& place);

/// The block's variable of this key, shared by all its threads. Null key: the dynamic shared
/// memory, whose size is set by the launch.
void* shared_variable(const void* key, std::size_t num_bytes, const Place& place);

}  // namespace troupe::cuda_emulation
