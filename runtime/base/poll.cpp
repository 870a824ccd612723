#include "runtime/base/poll.hpp"

#include <poll.h>

namespace troupe {

bool wait_ready(int descriptor, short events, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd ready{.fd = descriptor, .events = events, .revents = 0};
  return left.count() > 0 && ::poll(&ready, 1, static_cast<int>(left.count())) > 0;
}

}  // namespace troupe
