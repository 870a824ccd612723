#pragma once
// Clocks as numbers. Core logic takes the time as an argument; these are for its callers.

#include <chrono>
#include <cstdint>

namespace troupe {

/// Monotonic, from an arbitrary origin.
[[nodiscard]] inline std::int64_t steady_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}
[[nodiscard]] inline double now_seconds() { return 1e-9 * static_cast<double>(steady_ns()); }

[[nodiscard]] inline std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

/// Since 1970.
[[nodiscard]] inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace troupe
