#pragma once
// Access log: one line per request.

#include <string>

#include "runtime/http/service.hpp"

namespace troupe {

/// Without prompt text, queries, or secret ids. `client` is an address, `key` the name of an API
/// key.
void log_request(const HttpObservation& request, const WorkDone& work, std::string_view client,
                 std::string_view key);

}  // namespace troupe
