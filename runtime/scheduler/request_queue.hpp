#pragma once
// Waiting requests, in the order of admission.

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "runtime/scheduler/fair_share.hpp"
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

/// Does not own the requests. Under kPriority the position of a request follows from the order.
/// Under kFair each tenant has a FIFO queue, and the front is that of the least served tenant; it
/// changes as tenants are served.
class RequestQueue {
 public:
  /// `fair_share` must outlive the queue; used under kFair only.
  RequestQueue(SchedulingPolicy policy, const FairShare& fair_share)
      : policy_(policy), fair_share_(fair_share) {}

  void push(RequestState* request);
  void prepend(RequestState* request);
  /// Puts `requests`, in their order, before the others.
  void prepend(const std::vector<RequestState*>& requests);
  /// Pre: !empty().
  [[nodiscard]] RequestState* front() const;
  RequestState* pop();
  /// True if it was in the queue.
  bool remove(RequestState* request);
  [[nodiscard]] bool contains(RequestState* request) const;

  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept {
    return fifo_.size() + sorted_.size() + num_of_tenants_;
  }
  [[nodiscard]] std::vector<const RequestState*> list() const;

 private:
  /// The queue that the request is in, or would be added to. Pre: not kPriority.
  [[nodiscard]] std::deque<RequestState*>& fifo_of(const RequestState& request);

  SchedulingPolicy policy_;
  const FairShare& fair_share_;
  std::deque<RequestState*> fifo_;                                ///< kFcfs
  std::set<RequestState*, MoreUrgent> sorted_;                    ///< kPriority
  std::map<std::uint32_t, std::deque<RequestState*>> by_tenant_;  ///< kFair; none is empty
  std::size_t num_of_tenants_ = 0;                                ///< requests in by_tenant_
};

}  // namespace troupe
