// Requests whose time is up: how long each may wait and take (RequestLimits), and what becomes of
// it then.

#include <cmath>
#include <cstdio>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {
namespace {

/// "0.25", "30": at most milliseconds.
std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", seconds);
  std::string result = text;
  result.erase(result.find_last_not_of('0') + 1);
  if (result.ends_with('.')) result.pop_back();
  return result;
}

double deadline(double start, double limit_s) { return limit_s > 0 ? start + limit_s : kNever; }

}  // namespace

/// From now on the request has a place in deadlines_, if it has a limit.
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

/// It is scheduled for the first time: its waiting is over, also if it is preempted later.
void Scheduler::stop_queue_clock(RequestState& request) {
  if (request.queue_deadline == kNever) return;
  deadlines_.erase({request.next_deadline(), request.id});
  request.queue_deadline = kNever;
  if (request.next_deadline() != kNever) deadlines_.emplace(request.next_deadline(), request.id);
}

double Scheduler::next_deadline() const noexcept {
  return deadlines_.empty() ? kNever : deadlines_.begin()->first;
}

EngineCoreOutputs Scheduler::expire_requests(double now) {
  now_ = now;
  EngineCoreOutputs outputs{.engine_index = config_.engine_index, .time = now};
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    const auto known = requests_.find(id);
    CHECK(known != requests_.end(), value(id));
    RequestState& request = *known->second;
    const bool in_queue = request.queue_deadline <= now;
    const std::string took = seconds_text(now - request.arrival);
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = id;
    output.client_index = request.client_index;
    output.finish_reason = FinishReason::kTimeout;
    output.events = std::exchange(request.events, {});
    if (in_queue) {
      // The engine has more to do than it can: another try later, or elsewhere, may do better.
      output.error =
          Error{ErrorCode::kOverloaded,
                "the request has waited " + took + " s to be scheduled, max_queue_time_s is " +
                    seconds_text(request.limits.max_queue_time_s),
                "max_queue_time_s"};
    } else {
      output.error = Error{ErrorCode::kTimeout,
                           "the request has taken " + took + " s, max_request_time_s is " +
                               seconds_text(request.limits.max_request_time_s),
                           "max_request_time_s"};
    }
    finish(request, RequestStatus::kFinishedTimeout);
  }
  outputs.finished_requests = std::exchange(finished_by_client_, {});
  outputs.stats = take_stats(/*num_scheduled_tokens=*/0);
  return outputs;
}

}  // namespace troupe
