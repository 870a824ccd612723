#include "runtime/base/control_characters.hpp"

#include <cstdint>

#include "runtime/base/utf8.hpp"

namespace troupe {
namespace {

/// The length of the first character if it is printable; 0 for control characters (C0, DEL, C1),
/// line separators, bidirectional controls, and invalid UTF-8.
std::size_t shown_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= ' ' && byte(0) != 0x7F ? 1 : 0;
  const std::size_t size = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < size) return 0;
  std::uint32_t code = byte(0) & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (!unicode::is_continuation(byte(i))) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto within = [code](std::uint32_t first, std::uint32_t last) {
    return code >= first && code <= last;
  };
  const bool wrong = code < kLeast[size] || code > 0x10FFFF || within(0xD800, 0xDFFF);
  const bool acts = within(0x80, 0x9F) || within(0x200E, 0x200F) || within(0x2028, 0x202E) ||
                    within(0x2066, 0x2069);
  return wrong || acts ? 0 : size;
}

}  // namespace

std::string without_control_characters(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = shown_bytes(text);
    if (size > 0) {
      safe.append(text.substr(0, size));
      text.remove_prefix(size);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text.front());
    safe.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
    text.remove_prefix(1);
  }
  return safe;
}

}  // namespace troupe
