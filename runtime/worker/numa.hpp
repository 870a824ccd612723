#pragma once
// Which of a host's cores a worker has, and NUMA: cores that have memory of their own nearby.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;  ///< of the node, those that this process may use
  bool operator==(const NumaNode&) const = default;
};

/// The nodes with cores that this process may use, as the system's folder names them (the kernel's
/// Documentation/ABI, sysfs-devices-node); none where it does not say.
[[nodiscard]] std::vector<NumaNode> numa_nodes(
    const std::filesystem::path& folder = "/sys/devices/system/node");

/// The nodes of worker `index` of the `count` on this host: some for itself where there are as many
/// nodes as workers, else one that it shares with its neighbours.
struct NumaShare {
  std::vector<NumaNode> nodes;
  std::int32_t num_workers = 1;  ///< that these nodes serve

  [[nodiscard]] std::vector<int> cores() const;
};
/// Pre: 0 <= index < count; nodes are not empty.
[[nodiscard]] NumaShare numa_share(const std::vector<NumaNode>& nodes, std::int32_t index,
                                   std::int32_t count);

/// Threads that compute, of each of num_workers workers that share num_cores. Where there are 16 or
/// more, one is left to those that read, plan and answer; with fewer, chunks of work that any
/// thread may take give them room enough.
[[nodiscard]] int default_threads(int num_cores, int num_workers) noexcept;

/// From now on this thread, and those that it starts, run on these nodes' cores, and pages that
/// they touch first lie there: near the core with one node, in turns with several. Errors: kIo with
/// what the system does not allow; the cores are bound even if the pages are not.
Result<void> bind_this_thread(const std::vector<NumaNode>& nodes);

}  // namespace troupe
