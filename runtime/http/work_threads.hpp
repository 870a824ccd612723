#pragma once
// Threads for what takes too long for those that read sockets.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe {

/// Runs functions in the order in which they come, as many at once as there are threads.
class WorkThreads {
 public:
  explicit WorkThreads(int num_threads);
  /// Ends the functions that run; those that wait are dropped.
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  /// Any thread. The function must not throw.
  void run(std::function<void()> function);

 private:
  void work();

  std::mutex mutex_;  ///< guards the next two
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe
