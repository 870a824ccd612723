#pragma once
// ASCII text without regard to case: names, and truth values of options, variables and queries.

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

/// A copy with ASCII letters in lower case.
[[nodiscard]] std::string lower_ascii(std::string_view text);

/// "true", "1", "yes" and "on", or "false", "0", "no" and "off", in any case. nullopt: it is none.
[[nodiscard]] std::optional<bool> parse_flag(std::string_view text);

}  // namespace troupe
