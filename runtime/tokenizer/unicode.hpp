#pragma once
// UTF-8 and the Unicode properties that tokenizers use.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/utf8.hpp"

namespace troupe::unicode {

/// Bytes of the character that starts with `lead`. Pre: `lead` starts a valid UTF-8 character.
[[nodiscard]] constexpr std::size_t char_bytes(unsigned char lead) noexcept {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
/// The code point at `text[position]`. Pre: valid UTF-8, `position` is at a character boundary.
[[nodiscard]] char32_t decode_at(std::string_view text, std::size_t position) noexcept;
/// As above, and advances `position` past the character.
[[nodiscard]] char32_t next(std::string_view text, std::size_t& position) noexcept;
/// The code point that ends at `end`, and moves `end` to its start. Pre: end > 0.
[[nodiscard]] char32_t previous(std::string_view text, std::size_t& end) noexcept;
void append(std::string& out, char32_t code_point);
[[nodiscard]] std::string to_utf8(char32_t code_point);

[[nodiscard]] bool is_valid(std::string_view text) noexcept;
/// Appends `bytes`, replacing each maximal invalid part (Unicode 15, table 3-8) by one U+FFFD.
void append_lossy(std::string& out, std::string_view bytes);

/// White_Space.
[[nodiscard]] bool is_whitespace(char32_t c) noexcept;
/// General category N.
[[nodiscard]] bool is_numeric(char32_t c) noexcept;
/// General category L.
[[nodiscard]] bool is_letter(char32_t c) noexcept;
/// Category P in Unicode 8, or ASCII punctuation (some of which are symbols).
[[nodiscard]] bool is_punctuation(char32_t c) noexcept;
/// A regular expression's \w: Alphabetic, M, Nd, Pc, Join_Control.
[[nodiscard]] bool is_word(char32_t c) noexcept;
/// The reference tokenizers use the tables of the Unicode version that they were written for.
/// Whether `c` was already assigned in version `major`.0.
[[nodiscard]] bool is_assigned_since(char32_t c, unsigned major) noexcept;
inline constexpr unsigned kNormalizationVersion = 9;  ///< of the normalization forms

/// Category M in Unicode 9.
[[nodiscard]] bool is_mark(char32_t c) noexcept;
/// Category Mn in Unicode 8.
[[nodiscard]] bool is_nonspacing_mark(char32_t c) noexcept;
/// Category C in Unicode 8 (controls, formats, private use; not unassigned) except for tab, line
/// feed, carriage return.
[[nodiscard]] bool is_other(char32_t c) noexcept;
/// The blocks of CJK ideographs that BERT's tokenizer separates.
[[nodiscard]] bool is_cjk_ideograph(char32_t c) noexcept;
/// Appends the full lower-case mapping of one character, without context rules.
void append_lowercase(std::string& out, char32_t c);

}  // namespace troupe::unicode
