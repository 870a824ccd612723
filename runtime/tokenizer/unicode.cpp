#include "runtime/tokenizer/unicode.hpp"

#include <unicode/uchar.h>
#include <utf8proc.h>

#include <cstdint>
#include <optional>

#include "runtime/tokenizer/category.hpp"

namespace troupe::unicode {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) noexcept {
  return static_cast<unsigned char>(text[i]);
}

/// Length of the valid character at `i`, or 0; `invalid_bytes` is then the length of the maximal
/// invalid part.
std::size_t valid_char_bytes(std::string_view text, std::size_t i, std::size_t& invalid_bytes) {
  const unsigned char lead = byte_at(text, i);
  invalid_bytes = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = char_bytes(lead);
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t k = 1; k < length; ++k) {
    if (i + k >= text.size()) return 0;
    const unsigned char byte = byte_at(text, i + k);
    if (k == 1 ? (byte < low || byte > high) : !is_continuation(byte)) return 0;
    ++invalid_bytes;
  }
  return length;
}

/// Of letters newer than utf8proc's tables.
std::optional<char32_t> newer_lowercase(char32_t c) noexcept {
  struct Row {
    char32_t first;
    char32_t last;
    std::int32_t added;
  };
  static constexpr Row kNewer[] = {
#include "runtime/tokenizer/newer_lowercase.inc"
  };
  for (const Row& row : kNewer) {
    if (c < row.first) break;
    if (c <= row.last) return static_cast<char32_t>(static_cast<std::int32_t>(c) + row.added);
  }
  return std::nullopt;
}

}  // namespace

char32_t decode_at(std::string_view text, std::size_t position) noexcept {
  return next(text, position);
}

char32_t next(std::string_view text, std::size_t& position) noexcept {
  const unsigned char lead = byte_at(text, position);
  const auto tail = [&](std::size_t k) -> char32_t { return byte_at(text, position + k) & 0x3Fu; };
  char32_t c = lead;
  switch (char_bytes(lead)) {
    case 1:
      position += 1;
      return c;
    case 2:
      c = ((lead & 0x1Fu) << 6) | tail(1);
      position += 2;
      return c;
    case 3:
      c = ((lead & 0x0Fu) << 12) | (tail(1) << 6) | tail(2);
      position += 3;
      return c;
    default:
      c = ((lead & 0x07u) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3);
      position += 4;
      return c;
  }
}

char32_t previous(std::string_view text, std::size_t& end) noexcept {
  do {
    --end;
  } while (end > 0 && is_continuation(byte_at(text, end)));
  return decode_at(text, end);
}

void append(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string to_utf8(char32_t code_point) {
  std::string out;
  append(out, code_point);
  return out;
}

bool is_valid(std::string_view text) noexcept {
  std::size_t invalid_bytes = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = valid_char_bytes(text, i, invalid_bytes);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

void append_lossy(std::string& out, std::string_view bytes) {
  std::size_t invalid_bytes = 0;
  std::size_t run_begin = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t length = valid_char_bytes(bytes, i, invalid_bytes);
    if (length != 0) {
      i += length;
      continue;
    }
    out.append(bytes, run_begin, i - run_begin).append(kReplacement);
    i += invalid_bytes;
    run_begin = i;
  }
  out.append(bytes, run_begin);
}

bool is_assigned_since(char32_t c, unsigned major) noexcept {
  if (c < 0x300) return true;
  UVersionInfo version;
  u_charAge(static_cast<UChar32>(c), version);
  return version[0] != 0 && (version[0] < major || (version[0] == major && version[1] == 0));
}

bool is_whitespace(char32_t c) noexcept {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) noexcept {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_letter(char32_t c) noexcept {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_punctuation(char32_t c) noexcept {
  if (c < 0x80) return c > ' ' && c < 0x7F && !is_letter(c) && !is_numeric(c);
  const auto kind = category(c);
  if (kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO) return is_assigned_since(c, 8);
  return c == 0x166D || c == 0x111C9;  // punctuation in Unicode 8, but not today
}

bool is_word(char32_t c) noexcept {
  if (c < 0x80) return is_letter(c) || is_numeric(c) || c == '_';
  const auto kind = category(c);
  if (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) return true;  // L, M, Nd, Nl
  // The symbols that are Alphabetic: circled, squared and negative letters.
  const bool alphabetic_symbol = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                                 (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return kind == UTF8PROC_CATEGORY_PC || alphabetic_symbol || c == 0x200C || c == 0x200D;
}

bool is_mark(char32_t c) noexcept {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // marks in Unicode 9, but not today
  if (c == 0x111C9) return false;               // not a mark in Unicode 9, but one today
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME &&
         is_assigned_since(c, kNormalizationVersion);
}

bool is_nonspacing_mark(char32_t c) noexcept {
  if (c == 0x1734 || c == 0x1171E) return true;  // marks in Unicode 8, but not today
  const bool is_new = c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9 || c == 0x111CF;
  return !is_new && category(c) == UTF8PROC_CATEGORY_MN && is_assigned_since(c, 8);
}

bool is_other(char32_t c) noexcept {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return category(c) >= UTF8PROC_CATEGORY_CC && is_assigned_since(c, 8);
}

bool is_cjk_ideograph(char32_t c) noexcept {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lowercase(std::string& out, char32_t c) {
  append(out, newer_lowercase(c).value_or(
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)))));
  // The only character with a two-character lower-case form: I with dot above keeps its dot.
  if (c == 0x130) append(out, 0x307);
}

}  // namespace troupe::unicode
