#pragma once
// What stands behind the path in a request's target, and names that are written in either case.

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

/// Of ASCII letters.
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;

/// "value" in "/path?name=value".
[[nodiscard]] std::optional<std::string_view> query_value(std::string_view target,
                                                          std::string_view name);

/// "true" or "1".
[[nodiscard]] bool query_flag(std::string_view target, std::string_view name,
                              bool otherwise = false);

/// "a%2Db" -> "a-b"; what is no escape stays as it is.
[[nodiscard]] std::string unescaped(std::string_view text);

}  // namespace troupe
