#pragma once
// Reloading of settings from files while the process runs, triggered by SIGHUP.

#include <atomic>
#include <cstdint>

namespace troupe {

/// Incremented by each reload. Owners of reloadable settings compare it with the last value seen.
inline std::atomic<std::uint64_t> reload_count{0};

}  // namespace troupe
