#pragma once
// Where text that arrives in pieces can be cut.

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace troupe {

/// The position from which the rest of `text` may be the beginning of `literal`.
[[nodiscard]] inline std::size_t cut_before(std::string_view text, std::string_view literal) {
  const std::size_t longest = std::min(text.size(), literal.size() - 1);
  for (std::size_t size = longest; size > 0; --size) {
    if (literal.starts_with(text.substr(text.size() - size))) return text.size() - size;
  }
  return text.size();
}

/// The same, with a line break before the literal that belongs to it.
[[nodiscard]] inline std::size_t cut_before_line_end(std::string_view text,
                                                     std::string_view literal) {
  const std::size_t cut = cut_before(text, literal);
  return cut > 0 && text[cut - 1] == '\n' ? cut - 1 : cut;
}

/// Without an incomplete code point at the end.
[[nodiscard]] inline std::string_view whole_code_points(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t size = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return size > back ? text.substr(0, text.size() - back) : text;
  }
  return text;
}

}  // namespace troupe
