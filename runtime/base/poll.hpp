#pragma once
// Waiting for a descriptor.

#include <chrono>

namespace troupe {

/// Whether the descriptor became ready for `events` (of poll) before the deadline.
[[nodiscard]] bool wait_ready(int descriptor, short events,
                              std::chrono::steady_clock::time_point deadline);

}  // namespace troupe
