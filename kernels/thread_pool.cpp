#include "kernels/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <chrono>

namespace troupe {
namespace {

// Long enough to bridge the gap between two operations of a forward pass, short enough to release
// the core soon after the last one.
constexpr auto kSpinTime = std::chrono::microseconds(50);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until done() or the end of the spin time; returns the last done().
template <class Done>
bool spin_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

std::uint32_t job_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket >> 32); }
std::uint32_t num_free_of(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket); }

}  // namespace

int ThreadPool::num_usable_cores() {
  cpu_set_t usable;
  // Of the main thread, since another one may be bound to some of them.
  if (sched_getaffinity(getpid(), sizeof usable, &usable) == 0) return CPU_COUNT(&usable);
  return static_cast<int>(std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = num_usable_cores();
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { thread_main(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  work_appeared_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::parallel_for(std::int64_t num_chunks, ChunkFunction function) {
  if (num_chunks <= 1 || threads_.empty()) {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) function(chunk);
    return;
  }
  num_unfinished_.store(num_chunks, std::memory_order_relaxed);
  function_.store(&function, std::memory_order_relaxed);
  num_chunks_.store(static_cast<std::uint32_t>(num_chunks), std::memory_order_relaxed);
  // Sequentially consistent against num_sleeping_: either a thread that goes to sleep sees this
  // job, or we see that it sleeps.
  const std::uint32_t job = job_of(ticket_.load(std::memory_order_relaxed)) + 1;
  ticket_.store((std::uint64_t{job} << 32) | static_cast<std::uint32_t>(num_chunks));
  const int num_sleeping = num_sleeping_.load();
  if (num_sleeping > 0) {
    { std::lock_guard lock(mutex_); }
    const std::int64_t num_wanted = num_chunks - 1;
    if (num_wanted >= num_sleeping) {
      work_appeared_.notify_all();
    } else {
      for (std::int64_t i = 0; i < num_wanted; ++i) work_appeared_.notify_one();
    }
  }
  while (run_one_chunk()) {
  }
  wait_for_chunks();
}

/// Takes and runs the next chunk of the current job; false if there is none left.
bool ThreadPool::run_one_chunk() {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (num_free_of(ticket) > 0) {
    const ChunkFunction* function = function_.load(std::memory_order_relaxed);
    const std::uint32_t chunk = num_chunks_.load(std::memory_order_relaxed) - num_free_of(ticket);
    // On success, the fields read belonged to this job: it had a free chunk until now, so its
    // caller had not returned and had not started another.
    if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      (*function)(chunk);
      if (num_unfinished_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
        { std::lock_guard lock(mutex_); }
        chunks_finished_.notify_one();
      }
      return true;
    }
  }
  return false;
}

void ThreadPool::wait_for_chunks() {
  const auto finished = [this] { return num_unfinished_.load() == 0; };
  if (spin_until(finished)) return;
  std::unique_lock lock(mutex_);
  caller_sleeps_.store(true);
  chunks_finished_.wait(lock, finished);
  caller_sleeps_.store(false);
}

void ThreadPool::wait_for_work(std::uint32_t seen_job) {
  const auto appeared = [this, seen_job] {
    return job_of(ticket_.load()) != seen_job || stopping_;
  };
  if (spin_until(appeared)) return;
  std::unique_lock lock(mutex_);
  num_sleeping_.fetch_add(1);
  work_appeared_.wait(lock, appeared);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::thread_main() {
  while (!stopping_) {
    const std::uint32_t seen_job = job_of(ticket_.load());
    while (run_one_chunk()) {
    }
    wait_for_work(seen_job);
  }
}

}  // namespace troupe
