#include "runtime/scheduler/request_queue.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {

void RequestQueue::push(RequestState* request) {
  if (policy_ == SchedulingPolicy::kFcfs)
    fifo_.push_back(request);
  else
    sorted_.insert(request);
}

void RequestQueue::prepend(RequestState* request) {
  if (policy_ == SchedulingPolicy::kFcfs)
    fifo_.push_front(request);
  else
    sorted_.insert(request);
}

void RequestQueue::prepend(const std::vector<RequestState*>& requests) {
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) prepend(*request);
}

RequestState* RequestQueue::front() const {
  CHECK(!empty());
  return policy_ == SchedulingPolicy::kFcfs ? fifo_.front() : *sorted_.begin();
}

RequestState* RequestQueue::pop() {
  RequestState* const request = front();
  if (policy_ == SchedulingPolicy::kFcfs)
    fifo_.pop_front();
  else
    sorted_.erase(sorted_.begin());
  return request;
}

bool RequestQueue::remove(RequestState* request) {
  if (policy_ == SchedulingPolicy::kPriority) return sorted_.erase(request) > 0;
  const auto found = std::find(fifo_.begin(), fifo_.end(), request);
  if (found == fifo_.end()) return false;
  fifo_.erase(found);
  return true;
}

bool RequestQueue::contains(RequestState* request) const {
  if (policy_ == SchedulingPolicy::kPriority) return sorted_.contains(request);
  return std::find(fifo_.begin(), fifo_.end(), request) != fifo_.end();
}

std::vector<const RequestState*> RequestQueue::list() const {
  std::vector<const RequestState*> requests(fifo_.begin(), fifo_.end());
  requests.insert(requests.end(), sorted_.begin(), sorted_.end());
  return requests;
}

}  // namespace troupe
