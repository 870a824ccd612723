#pragma once
// Ranks with GPUs, each a process of its own: so that they can also share one GPU. NCCL refuses
// that to ranks of one host; where there are fewer GPUs than ranks, each is given out as a host of
// its own, and NCCL's bytes take the loopback interface.

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace troupe::testing {

/// Runs run(rank) for each rank, after cudaSetDevice; false if one returned false, crashed or took
/// longer than two minutes. The calling process does not use CUDA, which does not survive a fork.
inline bool run_gpu_ranks(int num_ranks, const std::function<bool(int rank)>& run) {
  constexpr unsigned kTimeoutSeconds = 120;
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kTimeoutSeconds);
      int num_devices = 0;
      if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) std::_Exit(2);
      if (num_devices < num_ranks) {
        setenv("NCCL_HOSTID", ("rank " + std::to_string(rank)).c_str(), 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      }
      const bool selected = cudaSetDevice(rank % num_devices) == cudaSuccess;
      std::_Exit(selected && run(rank) ? 0 : 1);
    }
    children.push_back(child);
  }
  bool all_succeeded = true;
  for (const pid_t child : children) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) all_succeeded = false;
  }
  return all_succeeded;
}

/// A global fixture: without a GPU it ends the program before the first test, with a status that
/// CTest shows as skipped.
struct NeedsGpu {
  NeedsGpu() {
    constexpr int kSkipped = 77;
    if (!run_gpu_ranks(1, [](int) { return true; })) std::_Exit(kSkipped);
  }
};

}  // namespace troupe::testing
