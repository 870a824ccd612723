#pragma once
// Threads for work that would block I/O threads.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/http/service.hpp"
#include "runtime/scheduler/work_queue.hpp"

namespace troupe {

/// Runs as much work concurrently as there are threads, in the order of a WorkQueue.
class WorkThreads {
 public:
  explicit WorkThreads(int num_threads);
  /// Waits for running functions; queued ones are dropped.
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  /// Any thread. The function must not throw.
  void run(Work work);

 private:
  void work();

  std::mutex mutex_;  ///< guards the next four
  WorkQueue queue_;
  std::unordered_map<std::uint64_t, std::function<void()>> waiting_;
  std::uint64_t num_added_ = 0;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe
