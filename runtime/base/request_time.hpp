#pragma once
// The errors of requests that exceed their time limits (RequestLimits).

#include "messages/error.hpp"
#include "messages/request.hpp"

namespace troupe {

/// Not scheduled after `age_s`.
[[nodiscard]] Error queue_time_error(double age_s, const RequestLimits& limits);

/// No output after `age_s`.
[[nodiscard]] Error request_time_error(double age_s, const RequestLimits& limits);

/// Rendering and tokenizing its prompt takes longer than the limit: a retry would fail too, so this
/// is a client error.
[[nodiscard]] Error input_time_error(double limit_s);

}  // namespace troupe
