#pragma once
// What a request hears whose time is up (RequestLimits), whoever notices it.

#include "messages/error.hpp"
#include "messages/request.hpp"

namespace troupe {

/// `age_s` after its arrival it has not been scheduled.
[[nodiscard]] Error queue_time_error(double age_s, const RequestLimits& limits);

/// `age_s` after its arrival there is nothing to show for it.
[[nodiscard]] Error request_time_error(double age_s, const RequestLimits& limits);

/// Its prompt takes longer to render and tokenise than a prompt may: it would again, so this is the
/// client's to change.
[[nodiscard]] Error input_time_error(double limit_s);

}  // namespace troupe
