#pragma once
// The thread on which a worker's side of a connector reads and writes what it keeps.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

/// Performs jobs on a thread of its own, in their order. What is to be saved and waits takes at
/// most `max_waiting_bytes`, or is one job. Used by one thread.
template <class Job, class Done>
class TransferThread {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;
  static constexpr std::chrono::milliseconds kMaxWait{1000};
  static constexpr std::chrono::milliseconds kMaxLastJob{3000};

  /// What a job gives, if it is to be known. It owns what it uses, since a read that hangs may
  /// outlast this object.
  using Perform = std::function<std::optional<Done>(Job&)>;

  /// `is_dropped`: jobs that nobody needs at the end.
  TransferThread(Perform perform, std::function<bool(const Job&)> is_dropped,
                 std::size_t max_waiting_bytes = kMaxWaitingBytes,
                 std::chrono::milliseconds max_last_job = kMaxLastJob)
      : state_(std::make_shared<State>()),
        is_dropped_(std::move(is_dropped)),
        max_waiting_bytes_(max_waiting_bytes),
        max_last_job_(max_last_job),
        thread_([state = state_, perform = std::move(perform)] { run(*state, perform); }) {}
  /// Performs what waits and is not dropped, unless a job takes longer than `max_last_job`: it
  /// and what it uses are left to the thread.
  ~TransferThread() {
    std::unique_lock lock(state_->mutex);
    state_->ends = true;
    std::erase_if(state_->jobs, [this](const Waiting& each) { return is_dropped_(each.job); });
    state_->changed.notify_all();
    while (!state_->has_ended && runs_for() < max_last_job_)
      state_->changed.wait_for(lock, max_last_job_ - runs_for());
    if (state_->has_ended) {
      lock.unlock();
      thread_.join();
    } else {
      state_->jobs.clear();
      thread_.detach();
    }
  }
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  /// Of a save: num_bytes, for which it waits until there is room. Where there is none for kMaxWait
  /// the job is dropped, and nothing waits until there is some: a store that hangs must not hold up
  /// the steps.
  void add(Job job, std::size_t num_bytes = 0) {
    {
      std::unique_lock lock(state_->mutex);
      const auto has_room = [&] {
        return num_bytes == 0 || state_->waiting_bytes == 0 ||
               state_->waiting_bytes + num_bytes <= max_waiting_bytes_;
      };
      if (!state_->changed.wait_for(lock, is_late_ ? kMaxWait.zero() : kMaxWait, has_room)) {
        is_late_ = true;
        return;
      }
      is_late_ = is_late_ && num_bytes == 0;
      state_->waiting_bytes += num_bytes;
      state_->jobs.push_back({std::move(job), num_bytes});
    }
    state_->changed.notify_all();
  }
  /// Since the last call.
  [[nodiscard]] std::vector<Done> take_done() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->done, {});
  }
  /// The job that is performed now takes longer than that.
  [[nodiscard]] bool hangs(std::chrono::milliseconds limit) {
    const std::lock_guard lock(state_->mutex);
    return runs_for() > limit;
  }

 private:
  struct Waiting {
    Job job;
    std::size_t num_bytes = 0;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Waiting> jobs;
    std::size_t waiting_bytes = 0;
    std::vector<Done> done;
    std::optional<std::chrono::steady_clock::time_point> began;  // none: no job is performed
    bool ends = false;
    bool has_ended = false;
  };

  /// Pre: the mutex is locked.
  [[nodiscard]] std::chrono::milliseconds runs_for() const {
    using std::chrono::milliseconds;
    if (!state_->began) return milliseconds::zero();
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() -
                                                    *state_->began);
  }

  static void run(State& state, const Perform& perform) {
    std::unique_lock lock(state.mutex);
    while (true) {
      state.changed.wait(lock, [&] { return state.ends || !state.jobs.empty(); });
      if (state.jobs.empty()) break;
      Waiting next = std::move(state.jobs.front());
      state.jobs.pop_front();
      state.began = std::chrono::steady_clock::now();
      lock.unlock();
      std::optional<Done> done = perform(next.job);
      lock.lock();
      state.began.reset();
      if (done) state.done.push_back(*std::move(done));
      state.waiting_bytes -= next.num_bytes;
      state.changed.notify_all();
    }
    state.has_ended = true;
    state.changed.notify_all();
  }

  std::shared_ptr<State> state_;  // the thread's, too
  std::function<bool(const Job&)> is_dropped_;
  std::size_t max_waiting_bytes_;
  std::chrono::milliseconds max_last_job_;
  bool is_late_ = false;  // the last save was dropped
  std::thread thread_;    // last: it uses the state
};

/// The loads, with a `number` each, that a TransferThread is to perform and has not delivered. One
/// that is late counts as failed, and what it gives afterwards is not used. Used by one thread.
template <class Load>
class OpenLoads {
 public:
  static constexpr std::chrono::milliseconds kNoLimit = std::chrono::milliseconds::max();

  void add(Load load, std::chrono::milliseconds limit) {
    Open& open = loads_[load.number];
    if (limit != kNoLimit) open.deadline = std::chrono::steady_clock::now() + limit;
    open.load = std::move(load);
  }
  /// False: it was late.
  [[nodiscard]] bool remove(std::uint64_t number) { return loads_.erase(number) > 0; }
  /// Those over their limit; all if the thread hangs, as they wait behind what it does.
  [[nodiscard]] std::vector<Load> take_late(bool hangs) {
    std::vector<Load> late;
    const auto now = std::chrono::steady_clock::now();
    for (auto each = loads_.begin(); each != loads_.end();) {
      if (!hangs && !(each->second.deadline && now > *each->second.deadline)) {
        ++each;
        continue;
      }
      late.push_back(std::move(each->second.load));
      each = loads_.erase(each);
    }
    return late;
  }

 private:
  struct Open {
    Load load;
    std::optional<std::chrono::steady_clock::time_point> deadline;
  };
  std::map<std::uint64_t, Open> loads_;
};

}  // namespace troupe
