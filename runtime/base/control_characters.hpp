#pragma once
// Untrusted text in terminal output and logs.

#include <string>
#include <string_view>

namespace troupe {

/// Escapes control characters, line separators and invalid bytes as \xHH.
[[nodiscard]] std::string without_control_characters(std::string_view text);

}  // namespace troupe
