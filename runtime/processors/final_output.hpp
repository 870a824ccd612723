#pragma once
// How a request ends that never reaches the Scheduler, or comes back from it; and what all that has
// come of one is together.

#include <optional>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"

namespace troupe {

/// Its last output: every sample that has not ended does so for `reason`; without one there are
/// none, for an error to be added.
[[nodiscard]] RequestOutput final_output(const GenerateRequest& request,
                                         std::optional<FinishReason> reason);

/// What `from` has, behind what `into` has of the same request (OutputKind::kDelta). With the last
/// one the samples are in order.
void append_output(RequestOutput& into, RequestOutput&& from);

}  // namespace troupe
