#pragma once
// UTF-8 helpers that need no tables.

#include <cstddef>
#include <string_view>

namespace troupe::unicode {

/// U+FFFD, the replacement of invalid bytes.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Whether a byte is a continuation byte.
[[nodiscard]] constexpr bool is_continuation(unsigned char byte) noexcept {
  return (byte & 0xC0) == 0x80;
}

/// The number of code points: Python's length of the text.
[[nodiscard]] constexpr std::size_t count(std::string_view text) noexcept {
  std::size_t n = 0;
  for (const char byte : text) n += !is_continuation(static_cast<unsigned char>(byte));
  return n;
}

}  // namespace troupe::unicode
