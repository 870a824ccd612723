#include "runtime/kv_transfer/layer_copier.hpp"

#include <utility>

namespace troupe {

LayerCopier::~LayerCopier() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LayerCopier::add(std::function<void()> copy) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(copy));
  }
  changed_.notify_all();
}

void LayerCopier::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !is_busy_; });
}

void LayerCopier::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> copy = std::move(jobs_.front());
    jobs_.pop_front();
    is_busy_ = true;
    lock.unlock();
    copy();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

bool LayeredLoad::put_layer(std::size_t index, const std::function<void()>& copy) {
  {
    const std::lock_guard lock(mutex_);
    if (is_given_up_) return false;
    copy();
    num_layers_ = index + 1;
  }
  changed_.notify_all();
  return true;
}

void LayeredLoad::end(bool is_valid) {
  {
    const std::lock_guard lock(mutex_);
    is_valid_ = is_valid;
  }
  changed_.notify_all();
}

bool LayeredLoad::wait_for_layer(std::size_t index, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return num_layers_ > index || is_valid_.has_value(); });
  return num_layers_ > index;
}

bool LayeredLoad::wait_for_end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return is_valid_.has_value(); });
  return is_valid_.value_or(false) && !is_given_up_;
}

void LayeredLoad::give_up() {
  const std::lock_guard lock(mutex_);
  is_given_up_ = true;
}

}  // namespace troupe
