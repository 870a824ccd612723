#pragma once
// Waiting requests: first come first served, or by (priority, arrival, id).

#include <deque>
#include <set>
#include <vector>

#include "runtime/scheduler/request_state.hpp"
#include "runtime/scheduler/scheduler_config.hpp"

namespace troupe {

/// More urgent first; a total order.
struct MoreUrgent {
  bool operator()(const RequestState* a, const RequestState* b) const noexcept {
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->arrival_time != b->arrival_time) return a->arrival_time < b->arrival_time;
    return value(a->id) < value(b->id);
  }
};

/// Does not own the requests. Under kPriority the place of a request follows from the order alone.
class RequestQueue {
 public:
  explicit RequestQueue(SchedulingPolicy policy) : policy_(policy) {}

  void push(RequestState* request);
  void prepend(RequestState* request);
  /// Keeps the order of `requests`, in front of the others.
  void prepend(const std::vector<RequestState*>& requests);
  /// Pre: !empty().
  [[nodiscard]] RequestState* front() const;
  RequestState* pop();
  /// True if it was there.
  bool remove(RequestState* request);
  [[nodiscard]] bool contains(RequestState* request) const;

  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return fifo_.size() + sorted_.size(); }
  [[nodiscard]] std::vector<const RequestState*> list() const;

 private:
  SchedulingPolicy policy_;
  std::deque<RequestState*> fifo_;              ///< kFcfs
  std::set<RequestState*, MoreUrgent> sorted_;  ///< kPriority
};

}  // namespace troupe
