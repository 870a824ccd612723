#pragma once
// Runs the batches of a BatchStore.

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/http/batch_store.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

/// How the requests of batches reach a service. Any thread.
struct BatchPort {
  /// Calls `done` once, from any thread, unless the call is aborted.
  std::function<void(std::uint64_t id, HttpRequest request, std::function<void(HttpResponse)> done)>
      start;
  std::function<void(std::uint64_t id)> abort;
  std::function<bool()> draining;
};

/// Owns a thread, and results that are being written. Each line of a batch is answered once: its
/// result is in a file before the next line takes its place, and what is there is not done again
/// by the next process. Of the processes that have the same directory, one runs batches: the holder
/// of its lock.
///
/// Results in files are whole lines; a line that a killed process has begun is removed.
class BatchRunner {
 public:
  /// `store` must outlive the runner.
  BatchRunner(BatchStore& store, BatchPort port, std::function<double()> wall_clock,
              std::int64_t max_in_flight);
  /// Stops.
  ~BatchRunner();
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  /// A batch was created or cancelled. Any thread.
  void changed();
  /// Aborts what runs, whose lines are left to the next process, and ends the thread.
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe
