#pragma once
// The compute threads of kernels.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace troupe {

/// A reference to a callable `void(std::int64_t)`; it does not own it and allocates nothing.
class ChunkFunction {
 public:
  ChunkFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, ChunkFunction>) ChunkFunction(const F& function)
  noexcept
      : object_(&function), call_([](const void* object, std::int64_t chunk) {
          (*static_cast<const F*>(object))(chunk);
        }) {}
  void operator()(std::int64_t chunk) const { call_(object_, chunk); }

 private:
  const void* object_ = nullptr;
  void (*call_)(const void*, std::int64_t) = nullptr;
};

/// Owns num_threads - 1 threads; the caller of parallel_for is the last one, so that no more
/// threads than requested compute.
///
/// Chunks are taken one at a time from a shared counter, and a call ends when every chunk is done,
/// not when every thread has woken: a thread that is not scheduled delays at most the one chunk it
/// has taken. Idle threads spin for a short time (the next operation of a forward pass is
/// microseconds away), then sleep.
///
/// One thread at a time may call parallel_for; the function must not call it recursively.
class ThreadPool {
 public:
  /// Cores in the affinity mask of this process.
  [[nodiscard]] static int num_usable_cores();

  /// num_threads 0: one per usable core.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Compute threads, including the caller's.
  [[nodiscard]] int num_threads() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  /// Calls function(i) once for every i in [0, num_chunks), in any order and on any of the threads,
  /// and returns when all calls have returned. What they wrote is visible to the caller.
  /// Pre: num_chunks < 2^32; the function does not throw.
  void parallel_for(std::int64_t num_chunks, ChunkFunction function);

 private:
  void thread_main();
  bool run_one_chunk();
  void wait_for_work(std::uint32_t seen_job);
  void wait_for_chunks();

  // Job number in the high half, number of free chunks in the low half. A chunk is taken by a
  // compare-and-swap of both, so a thread that is late for a finished job takes nothing.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int64_t> num_unfinished_{0};
  // The current job. Written before its number appears in ticket_; a thread that read a mixture of
  // two jobs fails to take a chunk.
  alignas(64) std::atomic<const ChunkFunction*> function_{nullptr};
  std::atomic<std::uint32_t> num_chunks_{0};
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  std::condition_variable work_appeared_;
  std::condition_variable chunks_finished_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::vector<std::thread> threads_;
};

}  // namespace troupe
