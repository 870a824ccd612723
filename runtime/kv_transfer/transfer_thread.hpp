#pragma once
// The thread on which a worker's side of a KV connector reads and writes what it keeps.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

/// Performs jobs on a thread of its own, in their order. What is to be saved and waits takes at
/// most kMaxWaitingBytes, or is one job. `Job` is a variant; `Load` is one of its kinds, and what
/// performing it gives is a `Loaded`. Used by one thread.
template <class Job, class Load, class Loaded>
class TransferThread {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;

  explicit TransferThread(std::function<void(Job&)> perform)
      : perform_(std::move(perform)), thread_([this] { run(); }) {}
  /// Performs what waits, but for loads, which are dropped.
  ~TransferThread() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      std::erase_if(jobs_,
                    [](const Waiting& each) { return std::holds_alternative<Load>(each.job); });
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
               waiting_bytes_ + num_bytes <= kMaxWaitingBytes;
      });
      waiting_bytes_ += num_bytes;
      jobs_.push_back({std::move(job), num_bytes});
    }
    changed_.notify_all();
  }
  /// For `perform`.
  void deliver(Loaded loaded) {
    const std::lock_guard lock(mutex_);
    loaded_.push_back(std::move(loaded));
  }
  /// Since the last call.
  [[nodiscard]] std::vector<Loaded> take_loaded() {
    const std::lock_guard lock(mutex_);
    return std::exchange(loaded_, {});
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
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> jobs_;
  std::size_t waiting_bytes_ = 0;
  std::vector<Loaded> loaded_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace troupe
