#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// The object of a body that is rewritten as another one; what becomes of it is read with
/// JsonFields, whose limits hold here too. Errors: kCorrupt.
[[nodiscard]] Result<nlohmann::ordered_json> parse_json_object(std::string_view body);

}  // namespace troupe
