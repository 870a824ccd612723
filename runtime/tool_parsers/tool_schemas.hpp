#pragma once
// JSON Schemas that hold a model to a call.

#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// The parameters of one function; an object without properties if it declares none. `tools_json`
/// is the array `tools` of a chat request. Errors: kNotFound.
[[nodiscard]] Result<std::string> parameters_schema(std::string_view tools_json,
                                                    std::string_view function);

/// An array of one or more {"name", "parameters"} of any of the tools; exactly one without
/// `parallel`. Definitions of the tools' schemas move to the root, under names of their own.
[[nodiscard]] Result<std::string> calls_schema(std::string_view tools_json, bool parallel);

}  // namespace troupe
