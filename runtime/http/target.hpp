#pragma once
// The query of a request's target, and case-insensitive names.

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// Compares ASCII letters case-insensitively.
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;

/// "value" in "/path?name=value".
[[nodiscard]] std::optional<std::string_view> query_value(std::string_view target,
                                                          std::string_view name);

/// What FastAPI takes as true or false: what parse_flag does, and its letters t, y, f and n.
/// Errors: kInvalidArgument, another value.
[[nodiscard]] Result<bool> query_flag(std::string_view target, std::string_view name,
                                      bool otherwise = false);

/// Decodes "a%2Db" to "a-b"; invalid escapes are kept.
[[nodiscard]] std::string unescaped(std::string_view text);

}  // namespace troupe
