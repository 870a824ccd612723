#pragma once
// Access log: one line per request.

#include <string>

#include "runtime/http/service.hpp"

namespace troupe {

/// Without prompt text, queries, or secret ids. `client` is an address.
void log_request(const HttpObservation& request, const WorkDone& work, std::string_view client);

}  // namespace troupe
