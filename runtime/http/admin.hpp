#pragma once
// Administration requests and responses as JSON.

#include <string>
#include <string_view>

#include "messages/control.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// {"group": 1, "timeout_s": 30}; without a timeout, running requests are moved at once. Errors: as
/// of the OpenAI request bodies.
[[nodiscard]] Result<DrainGroup> parse_drain_group(std::string_view body);

[[nodiscard]] std::string topology_json(const TopologyStatus& status);

}  // namespace troupe
