#pragma once
// A span for each request.

#include "runtime/http/service_context.hpp"

namespace troupe {

/// Adds a span to context.counters.spans, which is not null, unless the caller's trace is not
/// sampled. Without prompt text, queries, or secret ids.
void trace_request(const ServiceContext& context, const HttpObservation& request,
                   const WorkDone& work);

}  // namespace troupe
