#pragma once
// Character classes and lists of HTTP fields (RFC 9110, section 5.6).

#include <algorithm>
#include <string_view>

namespace troupe {

/// In a method, a field name, or a transfer coding.
[[nodiscard]] constexpr bool is_token_char(char c) noexcept {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
/// In a field value: no control characters.
[[nodiscard]] constexpr bool is_field_char(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= ' ' && byte != 0x7F);
}
/// Printable ASCII without the space.
[[nodiscard]] constexpr bool is_visible_char(char c) noexcept { return c > ' ' && c < 0x7F; }

[[nodiscard]] constexpr bool is_token(std::string_view text) noexcept {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

/// Strips spaces and tabs at both ends.
[[nodiscard]] constexpr std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Calls take(element) for each element of "a, b"; empty ones are skipped.
template <class Take>
constexpr void for_each_element(std::string_view list, Take&& take) {
  while (!list.empty()) {
    const std::size_t size = std::min(list.find(','), list.size());
    if (const std::string_view element = trimmed(list.substr(0, size)); !element.empty())
      take(element);
    list.remove_prefix(std::min(size + 1, list.size()));
  }
}

}  // namespace troupe
