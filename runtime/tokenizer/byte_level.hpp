#pragma once
// GPT-2's byte-level alphabet: each of the 256 bytes is represented by one printable character.

#include <optional>
#include <string>
#include <string_view>

namespace troupe::byte_level {

/// The character for `byte` (U+0021..U+0143), as UTF-8.
[[nodiscard]] std::string_view spelling(unsigned char byte) noexcept;
/// The byte that a character represents.
[[nodiscard]] std::optional<unsigned char> byte_of(char32_t character) noexcept;
/// The bytes that a token represents; nullopt if one of its characters represents none.
[[nodiscard]] std::optional<std::string> bytes_of(std::string_view token);

/// GPT-2's split expression.
inline constexpr std::string_view kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace troupe::byte_level
