#pragma once

#include "runtime/chat/jinja/methods.hpp"

namespace troupe::jinja {

/// The str method of this name; nullptr if there is none.
[[nodiscard]] NativeFunction find_string_method(std::string_view name);

/// text.replace(old_part, new_part, max_count); a negative count replaces all.
[[nodiscard]] std::string replace_all(const std::string& text, const std::string& old_part,
                                      const std::string& new_part, std::int64_t max_count,
                                      Runtime& runtime);

}  // namespace troupe::jinja
