#pragma once
// Copies between the layers of a KV cache and blobs, beside the computation.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace troupe {

/// Performs jobs on a thread of its own, in their order. Used by one thread.
class LayerCopier {
 public:
  LayerCopier() : thread_([this] { run(); }) {}
  /// Performs what waits.
  ~LayerCopier();
  LayerCopier(const LayerCopier&) = delete;
  LayerCopier& operator=(const LayerCopier&) = delete;

  void add(std::function<void()> copy);
  /// Until all are done: copies within the memory.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_busy_ = false;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

/// What is known of a load whose layers come one after the other: between the thread that loads and
/// the one that computes.
class LayeredLoad {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// False: it has been given up. copy() is not called then, and otherwise before give_up() ends.
  bool put_layer(std::size_t index, const std::function<void()>& copy);
  void end(bool is_valid);

  /// False: it will not come, or has not until the deadline.
  [[nodiscard]] bool wait_for_layer(std::size_t index, Deadline deadline);
  /// Whether all of it is there and right.
  [[nodiscard]] bool wait_for_end(Deadline deadline);
  void give_up();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t num_layers_ = 0;
  std::optional<bool> is_valid_;  // none: it goes on
  bool is_given_up_ = false;
};

}  // namespace troupe
