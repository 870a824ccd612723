// Time limits of requests (RequestLimits): queueing time and total time.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/request_time.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {
namespace {

double deadline(double start, double limit_s) { return limit_s > 0 ? start + limit_s : kNever; }

}  // namespace

/// Adds the request's deadlines to deadlines_, if it has any.
void Scheduler::start_clock(RequestState& request, const RequestLimits& limits, double age_s) {
  stop_clock(request);
  request.limits = limits;
  request.arrival = now_ - age_s;
  request.queue_deadline = deadline(request.arrival, limits.max_queue_time_s);
  request.request_deadline = deadline(request.arrival, limits.max_request_time_s);
  if (request.next_deadline() != kNever) deadlines_.emplace(request.next_deadline(), request.id);
}

void Scheduler::stop_clock(RequestState& request) {
  if (request.next_deadline() != kNever) deadlines_.erase({request.next_deadline(), request.id});
  request.queue_deadline = request.request_deadline = kNever;
}

/// The request is scheduled for the first time: the queueing limit no longer applies, even after a
/// preemption.
void Scheduler::stop_queue_clock(RequestState& request) {
  if (request.queue_deadline == kNever) return;
  deadlines_.erase({request.next_deadline(), request.id});
  request.queue_deadline = kNever;
  if (request.next_deadline() != kNever) deadlines_.emplace(request.next_deadline(), request.id);
}

double Scheduler::next_deadline() const noexcept {
  return std::min({deadlines_.empty() ? kNever : deadlines_.begin()->first,
                   kept_.empty() ? kNever : kept_.begin()->first.first,
                   pins_.empty() ? kNever : pins_.begin()->first});
}

EngineCoreOutputs Scheduler::expire_requests(double now) {
  now_ = now;
  EngineCoreOutputs outputs{.engine_index = config_.engine_index, .time = now};
  drop_expired();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    const auto known = requests_.find(id);
    CHECK(known != requests_.end(), value(id));
    RequestState& request = *known->second;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = id;
    output.client_index = request.client_index;
    output.finish_reason = FinishReason::kTimeout;
    output.events = std::exchange(request.events, {});
    const double age_s = now - request.arrival;
    output.error = request.queue_deadline <= now ? queue_time_error(age_s, request.limits)
                                                 : request_time_error(age_s, request.limits);
    finish(request, RequestStatus::kFinishedTimeout);
  }
  outputs.finished_requests = std::exchange(finished_by_client_, {});
  outputs.stats = take_stats(/*num_scheduled_tokens=*/0);
  return outputs;
}

}  // namespace troupe
