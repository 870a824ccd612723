#include "runtime/http/work_threads.hpp"

#include <utility>

namespace troupe {

WorkThreads::WorkThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

WorkThreads::~WorkThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkThreads::run(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(function));
  }
  changed_.notify_one();
}

void WorkThreads::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::function<void()> function = std::exchange(waiting_.front(), {});
    waiting_.pop_front();
    lock.unlock();
    function();
    function = {};  // what it held, too, is given back without the lock
    lock.lock();
  }
}

}  // namespace troupe
