#pragma once
// One line in the log for each request.

#include <string>

#include "runtime/http/service.hpp"

namespace troupe {

/// No text of a prompt, no query, no name that opens something. `client` is an address.
void log_request(const HttpObservation& request, const WorkDone& work, std::string_view client);

}  // namespace troupe
