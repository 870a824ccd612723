#pragma once
// The final output of a request that ends outside of the Scheduler; and merging of a request's
// outputs.

#include <optional>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"

namespace troupe {

/// The final output: every unfinished sample ends with `reason`; without a reason there are no
/// samples, and the caller adds an error.
[[nodiscard]] RequestOutput final_output(const GenerateRequest& request,
                                         std::optional<FinishReason> reason);

/// Appends `from` to `into`, outputs of the same request (OutputKind::kDelta). After the final
/// output the samples are in order.
void append_output(RequestOutput& into, RequestOutput&& from);

}  // namespace troupe
