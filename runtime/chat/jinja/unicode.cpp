#include "runtime/chat/jinja/unicode.hpp"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/check.hpp"

namespace troupe::jinja {
namespace {

UChar32 icu(char32_t c) { return static_cast<UChar32>(c); }

template <class Convert>
std::string with_icu(std::string_view text, Convert convert) {
  icu::UnicodeString units = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
  convert(units);
  std::string converted;
  units.toUTF8String(converted);
  return converted;
}

std::string ascii_map(std::string_view text, char first, char last, int shift) {
  std::string mapped(text);
  for (char& c : mapped) {
    if (c >= first && c <= last) c = static_cast<char>(c + shift);
  }
  return mapped;
}

std::string_view character_at(std::string_view text, std::size_t position) {
  std::size_t end = position;
  decode_at(text, end);
  return text.substr(position, end - position);
}

std::string title_character(std::string_view character) {
  if (is_ascii(character)) return to_upper(character);
  return with_icu(character, [](icu::UnicodeString& units) {
    units.toTitle(
        nullptr, icu::Locale::getRoot(),
        U_TITLECASE_NO_LOWERCASE | U_TITLECASE_NO_BREAK_ADJUSTMENT | U_TITLECASE_WHOLE_STRING);
  });
}

template <class Strip>
std::string_view strip_if(std::string_view text, Side side, Strip goes) {
  std::size_t start = 0;
  std::size_t end = text.size();
  if (side != Side::kRight) {
    while (start < end) {
      std::size_t next = start;
      if (!goes(decode_at(text, next))) break;
      start = next;
    }
  }
  if (side != Side::kLeft) {
    while (end > start) {
      std::size_t last = end - 1;
      while (last > start && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      std::size_t position = last;
      if (!goes(decode_at(text, position))) break;
      end = last;
    }
  }
  return text.substr(start, end - start);
}

}  // namespace

char32_t decode_at(std::string_view text, std::size_t& position) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  if (bytes[position] < 0x80) return bytes[position++];
  std::size_t index = position;
  const std::size_t size = text.size();
  UChar32 c = 0;
  U8_NEXT(bytes, index, size, c);
  position = index;
  return c < 0 ? char32_t{0xFFFD} : static_cast<char32_t>(c);
}

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c));
    return;
  }
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
  char buffer[U8_MAX_LENGTH];
  std::size_t size = 0;
  U8_APPEND_UNSAFE(buffer, size, c);
  text.append(buffer, size);
}

bool is_valid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t size = text.size();
  for (std::size_t index = 0; index < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, index, size, c);
    if (c < 0) return false;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::size_t num_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::u32string to_code_points(std::string_view text) {
  std::u32string code_points;
  code_points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) code_points.push_back(decode_at(text, i));
  return code_points;
}

std::string to_utf8(std::u32string_view code_points) {
  std::string text;
  text.reserve(code_points.size());
  for (const char32_t c : code_points) append_utf8(text, c);
  return text;
}

std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t position = 0;
  for (; index > 0 && position < text.size(); --index) decode_at(text, position);
  return position;
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  // glibc's memmem is the two-way algorithm; std::string's find is quadratic.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t rfind_text(std::string_view text, std::string_view part) {
  constexpr std::size_t kShort = 16;
  if (part.size() <= kShort) return text.rfind(part);
  // Knuth-Morris-Pratt from the right: borders[n] is the longest proper border of the last n bytes
  // of the part.
  const auto of_part = [&](std::size_t i) { return part[part.size() - 1 - i]; };
  std::vector<std::size_t> borders(part.size() + 1, 0);
  for (std::size_t i = 1, border = 0; i < part.size(); ++i) {
    while (border > 0 && of_part(i) != of_part(border)) border = borders[border];
    border += of_part(i) == of_part(border);
    borders[i + 1] = border;
  }
  for (std::size_t i = text.size(), matched = 0; i > 0; --i) {
    while (matched > 0 && text[i - 1] != of_part(matched)) matched = borders[matched];
    matched += text[i - 1] == of_part(matched);
    if (matched == part.size()) return i - 1;
  }
  return std::string_view::npos;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  const UCharDirection direction = u_charDirection(icu(c));
  return u_charType(icu(c)) == U_SPACE_SEPARATOR || direction == U_WHITE_SPACE_NEUTRAL ||
         direction == U_BLOCK_SEPARATOR || direction == U_SEGMENT_SEPARATOR;
}
bool is_alpha(char32_t c) { return (U_GET_GC_MASK(icu(c)) & U_GC_L_MASK) != 0; }
bool is_decimal(char32_t c) {
  return u_getIntPropertyValue(icu(c), UCHAR_NUMERIC_TYPE) == U_NT_DECIMAL;
}
int decimal_value(char32_t c) { return is_decimal(c) ? u_charDigitValue(icu(c)) : -1; }
bool is_digit(char32_t c) {
  return is_decimal(c) || u_getIntPropertyValue(icu(c), UCHAR_NUMERIC_TYPE) == U_NT_DIGIT;
}
bool is_numeric(char32_t c) {
  return u_getIntPropertyValue(icu(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool is_word(char32_t c) {
  return c == '_' || is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}
bool is_lower(char32_t c) { return u_hasBinaryProperty(icu(c), UCHAR_LOWERCASE); }
bool is_upper(char32_t c) { return u_hasBinaryProperty(icu(c), UCHAR_UPPERCASE); }
bool is_title(char32_t c) { return u_charType(icu(c)) == U_TITLECASE_LETTER; }
bool is_printable(char32_t c) {
  constexpr std::uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (U_GET_GC_MASK(icu(c)) & kHidden) == 0;
}
bool is_identifier_start(char32_t c) {
  return c == '_' || u_hasBinaryProperty(icu(c), UCHAR_XID_START);
}
bool is_identifier_part(char32_t c) { return u_hasBinaryProperty(icu(c), UCHAR_XID_CONTINUE); }

std::string to_upper(std::string_view text) {
  if (is_ascii(text)) return ascii_map(text, 'a', 'z', 'A' - 'a');
  return with_icu(text, [](icu::UnicodeString& units) { units.toUpper(icu::Locale::getRoot()); });
}
std::string to_lower(std::string_view text) {
  if (is_ascii(text)) return ascii_map(text, 'A', 'Z', 'a' - 'A');
  return with_icu(text, [](icu::UnicodeString& units) { units.toLower(icu::Locale::getRoot()); });
}
std::string case_fold(std::string_view text) {
  if (is_ascii(text)) return to_lower(text);
  return with_icu(text, [](icu::UnicodeString& units) { units.foldCase(); });
}

std::string to_title(std::string_view text) {
  std::string title;
  bool after_letter = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view character = character_at(text, i);
    i += character.size();
    std::size_t start = 0;
    const char32_t c = decode_at(character, start);
    // A final sigma has its own lower-case form.
    const bool is_final_sigma =
        c == 0x3A3 && after_letter && (i >= text.size() || [&] {
          std::size_t next = i;
          return !u_hasBinaryProperty(icu(decode_at(text, next)), UCHAR_CASED);
        }());
    if (is_final_sigma) {
      append_utf8(title, 0x3C2);
    } else {
      title += after_letter ? to_lower(character) : title_character(character);
    }
    after_letter = is_lower(c) || is_upper(c) || is_title(c);
  }
  return title;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const std::string_view first = character_at(text, 0);
  // The rest is lowered together with the first character, since final sigma depends on context.
  const std::string lower = to_lower(text);
  return title_character(first) + lower.substr(to_lower(first).size());
}

std::string swap_case(std::string_view text) {
  std::string swapped;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view character = character_at(text, i);
    i += character.size();
    std::size_t start = 0;
    const char32_t c = decode_at(character, start);
    swapped += is_upper(c)   ? to_lower(character)
               : is_lower(c) ? to_upper(character)
                             : std::string(character);
  }
  return swapped;
}

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip(std::string_view text, std::string_view characters, Side side) {
  std::u32string set = to_code_points(characters);
  std::sort(set.begin(), set.end());
  return strip_if(text, side,
                  [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

}  // namespace troupe::jinja
