#pragma once
// Detection of kills by the kernel's OOM killer.

#include <cstdint>
#include <filesystem>
#include <mutex>

namespace troupe {

/// Distinguishes the OOM killer from other senders of SIGKILL: the kernel counts its kills
/// (oom_kill in /proc/vmstat, for the machine and all of its cgroups). Thread-safe.
class OomKills {
 public:
  /// Counts from construction. Without the file or the line in it, the count is 0.
  explicit OomKills(std::filesystem::path file = "/proc/vmstat");
  /// Consumes one OOM kill, if there is one that was not taken yet.
  [[nodiscard]] bool take();

 private:
  [[nodiscard]] std::uint64_t count() const;

  std::filesystem::path file_;
  std::mutex mutex_;
  std::uint64_t num_taken_;
};

}  // namespace troupe
