#pragma once
// How a request ends that never reaches the Scheduler, or comes back from it.

#include <optional>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"

namespace troupe {

/// Its last output: every sample that has not ended does so for `reason`; without one there are
/// none, for an error to be added.
[[nodiscard]] RequestOutput final_output(const GenerateRequest& request,
                                         std::optional<FinishReason> reason);

}  // namespace troupe
