#pragma once
// Waiting for a memory word to change, also across processes (futex(2)).

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace troupe {

using FutexWord = std::atomic<std::uint32_t>;
static_assert(FutexWord::is_always_lock_free && sizeof(FutexWord) == 4);

/// Waits until the word differs from `expected`, a wake-up, or the deadline. May return spuriously.
inline void futex_wait(FutexWord& word, std::uint32_t expected,
                       std::chrono::steady_clock::time_point until) noexcept {
  const auto since_epoch = until.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds.count());
  time.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since_epoch - seconds).count());
  // WAIT_BITSET takes an absolute time on the clock of std::chrono::steady_clock. Without
  // FUTEX_PRIVATE_FLAG, since the word may be shared between processes.
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &time, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake_all(FutexWord& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace troupe
