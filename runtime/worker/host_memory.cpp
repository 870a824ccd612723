#include "runtime/worker/host_memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace troupe {
namespace {

/// The number that follows `key` in a file of "key number" lines.
std::optional<std::int64_t> read_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word)
    if (word == key) {
      std::int64_t number = 0;
      if (file >> number) return number;
      return std::nullopt;
    }
  return std::nullopt;
}

/// The number a file consists of; none for "max".
std::optional<std::int64_t> read_number(const char* path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

/// What the limit of the control group (version 2, or else 1) leaves. Page cache is not counted as
/// used: the system gives it up first.
std::optional<std::int64_t> left_in_control_group() {
  if (const auto limit = read_number("/sys/fs/cgroup/memory.max"))
    return *limit - read_field("/sys/fs/cgroup/memory.stat", "anon").value_or(0);
  if (const auto limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return *limit - read_field("/sys/fs/cgroup/memory/memory.stat", "rss").value_or(0);
  return std::nullopt;
}

}  // namespace

std::int64_t available_host_bytes() {
  constexpr std::int64_t kKibibyte = 1024;
  const std::int64_t available =
      read_field("/proc/meminfo", "MemAvailable:").value_or(0) * kKibibyte;
  const std::int64_t left = left_in_control_group().value_or(available);
  return std::max<std::int64_t>(0, std::min(available, left));
}

}  // namespace troupe
