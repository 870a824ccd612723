#include "runtime/http/work_threads.hpp"

#include <utility>

#include "runtime/base/clock.hpp"

namespace troupe {

WorkThreads::WorkThreads(int num_threads) : queue_(static_cast<std::size_t>(num_threads)) {
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

void WorkThreads::run(Work work) {
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = num_added_++;
    queue_.add({number, work.tenant, work.client, work.num_bytes}, now_seconds());
    waiting_.emplace(number, std::move(work.function));
  }
  changed_.notify_one();
}

void WorkThreads::work() {
  std::unique_lock lock(mutex_);
  for (std::optional<WorkQueue::Start> start;;) {
    changed_.wait(lock, [&] { return stopping_ || (start = queue_.start_next(now_seconds())); });
    if (stopping_) return;
    std::function<void()> function = std::move(waiting_.extract(start->number).mapped());
    lock.unlock();
    function();
    function = {};  // destroy its captures without the lock, too
    lock.lock();
    queue_.finish(start->worker, now_seconds());
    changed_.notify_one();  // the queue may have held work back
  }
}

}  // namespace troupe
