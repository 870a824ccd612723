#pragma once
// Strings as in Python: sequences of code points, with Unicode's full case mappings. All text is
// valid UTF-8.

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::jinja {

/// The code point that starts at byte `position`, which is advanced past it. Pre: position < size.
char32_t decode_at(std::string_view text, std::size_t& position);
void append_utf8(std::string& text, char32_t code_point);
[[nodiscard]] bool is_valid_utf8(std::string_view text);
[[nodiscard]] bool is_ascii(std::string_view text);
[[nodiscard]] std::size_t num_code_points(std::string_view text);
[[nodiscard]] std::u32string to_code_points(std::string_view text);
[[nodiscard]] std::string to_utf8(std::u32string_view code_points);
/// The byte where code point `index` starts; the end of the text if there are fewer.
[[nodiscard]] std::size_t byte_offset(std::string_view text, std::size_t index);

/// The first occurrence of `part` at or after `from`, or the last one; npos if there is none.
/// Linear in both sizes for any input.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view part,
                                    std::size_t from = 0);
[[nodiscard]] std::size_t rfind_text(std::string_view text, std::string_view part);

// Python's str.isspace() and so on, for one code point.
[[nodiscard]] bool is_space(char32_t c);
[[nodiscard]] bool is_alpha(char32_t c);
[[nodiscard]] bool is_decimal(char32_t c);
/// 0 to 9, or -1 if it is not a decimal digit.
[[nodiscard]] int decimal_value(char32_t c);
[[nodiscard]] bool is_digit(char32_t c);
[[nodiscard]] bool is_numeric(char32_t c);
/// Python's \w: letters, numeric characters, and the underscore.
[[nodiscard]] bool is_word(char32_t c);
[[nodiscard]] bool is_lower(char32_t c);
[[nodiscard]] bool is_upper(char32_t c);
[[nodiscard]] bool is_title(char32_t c);
[[nodiscard]] bool is_printable(char32_t c);
[[nodiscard]] bool is_identifier_start(char32_t c);
[[nodiscard]] bool is_identifier_part(char32_t c);

[[nodiscard]] std::string to_upper(std::string_view text);
[[nodiscard]] std::string to_lower(std::string_view text);
[[nodiscard]] std::string case_fold(std::string_view text);
/// str.title(): a letter after a letter is lower case, any other is title case.
[[nodiscard]] std::string to_title(std::string_view text);
[[nodiscard]] std::string capitalize(std::string_view text);
[[nodiscard]] std::string swap_case(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
/// Strips whitespace at the sides.
[[nodiscard]] std::string_view strip(std::string_view text, Side side = Side::kBoth);
/// Strips `characters` at the sides. Costs log(characters) for each one removed.
[[nodiscard]] std::string_view strip(std::string_view text, std::string_view characters,
                                     Side side = Side::kBoth);

}  // namespace troupe::jinja
