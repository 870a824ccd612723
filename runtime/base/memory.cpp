#include "runtime/base/memory.hpp"

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

/// To give it back takes some milliseconds, which hundreds of usual requests share.
constexpr std::size_t kWorthwhileBytes = 8 << 20;
/// What ends an arena goes back when as much of it is free: malloc_trim leaves it in all but the
/// first one, and the allocator's own threshold grows up to 64 MiB. Blocks as large are mapped.
constexpr int kFreeEndBytes = 4 << 20;
/// Until everyone who had a part of a request has let go of it.
constexpr auto kDelay = 1s;

/// Owns the thread that gives memory back, from the first time that it is worthwhile on.
class Trimmer {
 public:
  Trimmer() {
    mallopt(M_TRIM_THRESHOLD, kFreeEndBytes);
    mallopt(M_MMAP_THRESHOLD, kFreeEndBytes);
  }
  void note(std::size_t bytes) {
    if (freed_.fetch_add(bytes, std::memory_order_relaxed) + bytes < kWorthwhileBytes) return;
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable())
      thread_ = std::jthread([this](const std::stop_token& end) { run(end); });
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& end) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, end, [this] { return freed_ >= kWorthwhileBytes; })) {
      changed_.wait_for(lock, end, kDelay, [] { return false; });
      if (end.stop_requested()) return;
      freed_ = 0;
      lock.unlock();
      malloc_trim(0);
      lock.lock();
    }
  }

  std::atomic<std::size_t> freed_{0};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace

void note_freed_memory(std::size_t bytes) noexcept {
  static Trimmer trimmer;
  try {
    trimmer.note(bytes);
  } catch (const std::exception&) {  // no thread is to be had: the next note tries again
  }
}

}  // namespace troupe
