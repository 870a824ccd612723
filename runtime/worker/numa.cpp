#include "runtime/worker/numa.hpp"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/base/file.hpp"

namespace troupe {
namespace {

/// Takes a number from the front of `text`; -1 if there is none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc() ? number : -1;
}

/// Of a list as "0-3,8,10-11" those below CPU_SETSIZE, up to what is no such list.
std::vector<int> parse_list(std::string_view text) {
  std::vector<int> numbers;
  do {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) break;
    for (int number = first; number <= std::min(last, CPU_SETSIZE - 1); ++number)
      numbers.push_back(number);
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
  } while (true);
  return numbers;
}

std::vector<int> read_list(const std::filesystem::path& path) {
  const auto text = read_file(path);
  return text.ok() ? parse_list(*text) : std::vector<int>();
}

Error refused(std::string_view what) {
  return {ErrorCode::kIo, std::string(what) + ": " + std::strerror(errno)};
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::filesystem::path& folder) {
  std::vector<NumaNode> nodes;
  cpu_set_t usable;
  // The main thread's: another one may be bound to some of them by now.
  if (sched_getaffinity(getpid(), sizeof usable, &usable) != 0) return nodes;
  for (const int id : read_list(folder / "online")) {
    NumaNode node{.id = id, .cores = read_list(folder / ("node" + std::to_string(id)) / "cpulist")};
    std::erase_if(node.cores, [&](int core) { return !CPU_ISSET(core, &usable); });
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<int> NumaShare::cores() const {
  std::vector<int> all;
  for (const NumaNode& node : nodes) all.insert(all.end(), node.cores.begin(), node.cores.end());
  return all;
}

NumaShare numa_share(const std::vector<NumaNode>& nodes, std::int32_t index, std::int32_t count) {
  const auto num_nodes = static_cast<std::int32_t>(nodes.size());
  CHECK(num_nodes > 0 && index >= 0 && index < count, num_nodes, index, count);
  // The first node of each worker; workers before a node's first one end before that node.
  const auto first_node = [&](std::int32_t worker) {
    return static_cast<std::int32_t>(std::int64_t{worker} * num_nodes / count);
  };
  const std::int32_t first = first_node(index);
  const std::int32_t end = std::max(first + 1, first_node(index + 1));
  NumaShare share{.nodes = {nodes.begin() + first, nodes.begin() + end}, .num_workers = 0};
  for (std::int32_t worker = 0; worker < count; ++worker) {
    if (first_node(worker) == first) ++share.num_workers;
  }
  return share;
}

int default_threads(int num_cores, int num_workers) noexcept {
  constexpr int kEnough = 16;
  const int num_left = num_cores >= kEnough ? 1 : 0;
  return std::max(1, (num_cores - num_left) / num_workers);
}

Result<void> bind_this_thread(const std::vector<NumaNode>& nodes) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  unsigned long mask[CPU_SETSIZE / (CHAR_BIT * sizeof(unsigned long))] = {};
  constexpr std::size_t kWordBits = CHAR_BIT * sizeof(unsigned long);
  for (const NumaNode& node : nodes) {
    for (const int core : node.cores) CPU_SET(core, &cores);
    const auto id = static_cast<std::size_t>(node.id);
    mask[id / kWordBits] |= 1UL << id % kWordBits;
  }
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) return refused("sched_setaffinity");
  // Of one node the kernel takes the nearest memory by itself, and other memory when that is full.
  if (nodes.size() < 2) return {};
  if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, sizeof mask * CHAR_BIT) != 0)
    return refused("set_mempolicy");
  return {};
}

}  // namespace troupe
