#include "runtime/base/request_time.hpp"

#include <cstdio>

namespace troupe {
namespace {

/// "0.25", "30": with millisecond resolution.
std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", seconds);
  std::string result = text;
  result.erase(result.find_last_not_of('0') + 1);
  if (result.ends_with('.')) result.pop_back();
  return result;
}

}  // namespace

/// The engine is overloaded: a retry later, or elsewhere, may succeed.
Error queue_time_error(double age_s, const RequestLimits& limits) {
  return {ErrorCode::kOverloaded,
          "the request has waited " + seconds_text(age_s) +
              " s to be scheduled, max_queue_time_s is " + seconds_text(limits.max_queue_time_s),
          "max_queue_time_s"};
}

Error request_time_error(double age_s, const RequestLimits& limits) {
  return {ErrorCode::kTimeout,
          "the request has taken " + seconds_text(age_s) + " s, max_request_time_s is " +
              seconds_text(limits.max_request_time_s),
          "max_request_time_s"};
}

Error input_time_error(double limit_s) {
  return {ErrorCode::kInvalidArgument,
          "rendering and tokenizing the prompt took too long, max_input_time_s is " +
              seconds_text(limit_s),
          "prompt"};
}

}  // namespace troupe
