#pragma once
// What the kernel ends for lack of memory.

#include <cstdint>
#include <filesystem>
#include <mutex>

namespace troupe {

/// Tells a process that the kernel has killed for lack of memory from one that somebody else has:
/// both ended by SIGKILL, but the kernel counts its own (oom_kill in /proc/vmstat, for all of the
/// machine and its cgroups). Any thread may ask.
class OomKills {
 public:
  /// Counts from now on. Without such a file, or such a line in it, there are none.
  explicit OomKills(std::filesystem::path file = "/proc/vmstat");
  /// There was one that nobody has taken: it is the caller's.
  [[nodiscard]] bool take();

 private:
  [[nodiscard]] std::uint64_t count() const;

  std::filesystem::path file_;
  std::mutex mutex_;
  std::uint64_t num_taken_;
};

}  // namespace troupe
