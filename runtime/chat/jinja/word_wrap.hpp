#pragma once
// Python's textwrap.wrap, as used by the filter wordwrap.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja/error.hpp"

namespace troupe::jinja {

struct WrapStyle {
  std::size_t width = 79;  ///< in code points, at least 1
  bool breaks_long_words = true;
  bool breaks_on_hyphens = true;
};

/// Breaks one line of text into lines.
[[nodiscard]] std::vector<std::string> wrap_words(std::string_view text, const WrapStyle& style,
                                                  Budget& budget);

}  // namespace troupe::jinja
