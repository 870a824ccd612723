#include "runtime/scheduler/request_queue.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {

std::deque<RequestState*>& RequestQueue::fifo_of(const RequestState& request) {
  return policy_ == SchedulingPolicy::kFair ? by_tenant_[request.tenant] : fifo_;
}

void RequestQueue::push(RequestState* request) {
  if (policy_ == SchedulingPolicy::kPriority) {
    sorted_.insert(request);
    return;
  }
  fifo_of(*request).push_back(request);
  num_of_tenants_ += policy_ == SchedulingPolicy::kFair;
}

void RequestQueue::prepend(RequestState* request) {
  if (policy_ == SchedulingPolicy::kPriority) {
    sorted_.insert(request);
    return;
  }
  fifo_of(*request).push_front(request);
  num_of_tenants_ += policy_ == SchedulingPolicy::kFair;
}

void RequestQueue::prepend(const std::vector<RequestState*>& requests) {
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) prepend(*request);
}

RequestState* RequestQueue::front() const {
  CHECK(!empty());
  if (policy_ == SchedulingPolicy::kPriority) return *sorted_.begin();
  if (policy_ == SchedulingPolicy::kFcfs) return fifo_.front();
  // Among equally served tenants, the one whose request came first.
  const auto before = [this](const auto& a, const auto& b) {
    const double served_a = fair_share_.served(a.first);
    const double served_b = fair_share_.served(b.first);
    if (served_a != served_b) return served_a < served_b;
    return a.second.front()->sequence < b.second.front()->sequence;
  };
  return std::min_element(by_tenant_.begin(), by_tenant_.end(), before)->second.front();
}

RequestState* RequestQueue::pop() {
  RequestState* const request = front();
  remove(request);
  return request;
}

bool RequestQueue::remove(RequestState* request) {
  if (policy_ == SchedulingPolicy::kPriority) return sorted_.erase(request) > 0;
  if (policy_ == SchedulingPolicy::kFair && !by_tenant_.contains(request->tenant)) return false;
  std::deque<RequestState*>& fifo = fifo_of(*request);
  const auto found = std::find(fifo.begin(), fifo.end(), request);
  if (found == fifo.end()) return false;
  fifo.erase(found);
  if (policy_ == SchedulingPolicy::kFair) {
    --num_of_tenants_;
    if (fifo.empty()) by_tenant_.erase(request->tenant);
  }
  return true;
}

bool RequestQueue::contains(RequestState* request) const {
  if (policy_ == SchedulingPolicy::kPriority) return sorted_.contains(request);
  const std::deque<RequestState*>* fifo = &fifo_;
  if (policy_ == SchedulingPolicy::kFair) {
    const auto tenant = by_tenant_.find(request->tenant);
    if (tenant == by_tenant_.end()) return false;
    fifo = &tenant->second;
  }
  return std::find(fifo->begin(), fifo->end(), request) != fifo->end();
}

std::vector<const RequestState*> RequestQueue::list() const {
  std::vector<const RequestState*> requests(fifo_.begin(), fifo_.end());
  requests.insert(requests.end(), sorted_.begin(), sorted_.end());
  for (const auto& [tenant, fifo] : by_tenant_)
    requests.insert(requests.end(), fifo.begin(), fifo.end());
  return requests;
}

}  // namespace troupe
