#pragma once
// What those who run the server ask of it, and what it tells them, as JSON.

#include <string>
#include <string_view>

#include "messages/control.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// {"group": 1, "timeout_s": 30}; without a time, what runs is moved at once. Errors: as of the
/// bodies of the OpenAI API.
[[nodiscard]] Result<DrainGroup> parse_drain_group(std::string_view body);

[[nodiscard]] std::string topology_json(const TopologyStatus& status);

}  // namespace troupe
