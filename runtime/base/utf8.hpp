#pragma once
// The little about UTF-8 that needs no table.

#include <cstddef>
#include <string_view>

namespace troupe::unicode {

/// U+FFFD: stands for bytes that are no character.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// A byte of a character behind its first one.
[[nodiscard]] constexpr bool is_continuation(unsigned char byte) noexcept {
  return (byte & 0xC0) == 0x80;
}

/// Code points of UTF-8 text: what Python counts as its length.
[[nodiscard]] constexpr std::size_t count(std::string_view text) noexcept {
  std::size_t n = 0;
  for (const char byte : text) n += !is_continuation(static_cast<unsigned char>(byte));
  return n;
}

}  // namespace troupe::unicode
