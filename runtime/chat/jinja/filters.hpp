#pragma once
// Jinja's filters and tests by name.

#include <string_view>

#include "runtime/chat/jinja/ast.hpp"

namespace troupe::jinja {

/// nullptr if there is no such filter.
[[nodiscard]] FilterFunction find_filter(std::string_view name);
[[nodiscard]] TestFunction find_test(std::string_view name);

}  // namespace troupe::jinja
