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

/// malloc_trim takes some milliseconds, amortised over hundreds of typical requests.
constexpr std::size_t kWorthwhileBytes = 8 << 20;
/// Trim threshold of the end of an arena: malloc_trim skips it in all but the first arena, and the
/// allocator's dynamic threshold grows up to 64 MiB. Blocks of this size are mapped.
constexpr int kFreeEndBytes = 4 << 20;
/// Until all owners of parts of a request have released them.
constexpr auto kDelay = 1s;

/// Owns the trimming thread, which is started on first use.
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
  std::jthread thread_;  // last member, since it uses the others
};

}  // namespace

void note_freed_memory(std::size_t bytes) noexcept {
  static Trimmer trimmer;
  try {
    trimmer.note(bytes);
  } catch (const std::exception&) {  // no thread could be started: the next note tries again
  }
}

}  // namespace troupe
