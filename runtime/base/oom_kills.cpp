#include "runtime/base/oom_kills.hpp"

#include <fstream>
#include <string>
#include <utility>

namespace troupe {

OomKills::OomKills(std::filesystem::path file) : file_(std::move(file)), num_taken_(count()) {}

std::uint64_t OomKills::count() const {
  std::ifstream lines(file_);
  std::string name;
  std::uint64_t value = 0;
  while (lines >> name >> value)
    if (name == "oom_kill") return value;
  return 0;
}

bool OomKills::take() {
  const std::scoped_lock lock(mutex_);
  if (count() <= num_taken_) return false;
  ++num_taken_;
  return true;
}

}  // namespace troupe
