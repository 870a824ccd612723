#pragma once
// What is read from files may be read again while the process runs: a signal (SIGHUP) says when.

#include <atomic>
#include <cstdint>

namespace troupe {

/// Rises whenever settings are to be read again. Who holds some compares it with what it was then.
inline std::atomic<std::uint64_t> reload_count{0};

}  // namespace troupe
