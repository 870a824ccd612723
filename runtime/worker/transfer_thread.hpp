#pragma once
// The thread on which a worker's side of a connector reads and writes what it keeps.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

/// Performs jobs on a thread of its own, in their order. What is to be saved and waits takes at
/// most `max_waiting_bytes`, or is one job. What performing a job gives, if it is to be known, is a
/// `Done`. Used by one thread.
template <class Job, class Done>
class TransferThread {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;

  /// `is_dropped`: jobs that nobody needs at the end.
  TransferThread(std::function<void(Job&)> perform, std::function<bool(const Job&)> is_dropped,
                 std::size_t max_waiting_bytes = kMaxWaitingBytes)
      : perform_(std::move(perform)),
        is_dropped_(std::move(is_dropped)),
        max_waiting_bytes_(max_waiting_bytes),
        thread_([this] { run(); }) {}
  /// Performs what waits and is not dropped.
  ~TransferThread() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      std::erase_if(jobs_, [this](const Waiting& each) { return is_dropped_(each.job); });
    }
    changed_.notify_all();
    thread_.join();
  }
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  /// Of a save: num_bytes, for which it waits until there is room.
  void add(Job job, std::size_t num_bytes = 0) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return num_bytes == 0 || waiting_bytes_ == 0 ||
               waiting_bytes_ + num_bytes <= max_waiting_bytes_;
      });
      waiting_bytes_ += num_bytes;
      jobs_.push_back({std::move(job), num_bytes});
    }
    changed_.notify_all();
  }
  /// For `perform`.
  void deliver(Done done) {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
  }
  /// Since the last call.
  [[nodiscard]] std::vector<Done> take_done() {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }

 private:
  struct Waiting {
    Job job;
    std::size_t num_bytes = 0;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Waiting next = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      perform_(next.job);
      lock.lock();
      waiting_bytes_ -= next.num_bytes;
      changed_.notify_all();
    }
  }

  std::function<void(Job&)> perform_;
  std::function<bool(const Job&)> is_dropped_;
  std::size_t max_waiting_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> jobs_;
  std::size_t waiting_bytes_ = 0;
  std::vector<Done> done_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace troupe
