#pragma once
// Text from outside that a terminal or a log shows.

#include <string>
#include <string_view>

namespace troupe {

/// A byte that would do something to a terminal, or look like the end of a line, is shown as \xHH.
[[nodiscard]] std::string without_control_characters(std::string_view text);

}  // namespace troupe
