#pragma once
// GPT-2's reversible spelling of bytes: each of the 256 bytes is written as one printable
// character.

#include <optional>
#include <string>
#include <string_view>

namespace troupe::byte_level {

/// The character for `byte` (U+0021..U+0143), as UTF-8.
[[nodiscard]] std::string_view spelling(unsigned char byte) noexcept;
/// The byte that a character spells.
[[nodiscard]] std::optional<unsigned char> byte_of(char32_t character) noexcept;
/// The bytes that a token spells; none if one of its characters spells no byte.
[[nodiscard]] std::optional<std::string> bytes_of(std::string_view token);

/// The expression that splits GPT-2's texts.
inline constexpr std::string_view kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace troupe::byte_level
