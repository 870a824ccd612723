#include "runtime/structured_output/grammar_text.hpp"

#include <algorithm>

namespace troupe {

std::size_t GrammarText::line_of(std::size_t position) const {
  const std::string_view before = text_.substr(0, position);
  return 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
}

void GrammarText::fail_at(std::size_t position, const std::string& what) const {
  const std::string_view before = text_.substr(0, position);
  const std::string_view in_line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
  const auto column =
      1 + std::count_if(in_line.begin(), in_line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // begins a character
      });
  throw GrammarRefused("grammar: " + what + " at line " + std::to_string(line_of(position)) +
                       ", column " + std::to_string(column));
}

void GrammarText::fail_unexpected() const {
  if (at_end()) fail("unexpected end of the grammar");
  std::size_t size = 1;  // of UTF-8
  while (size < rest().size() && (static_cast<unsigned char>(rest()[size]) & 0xC0) == 0x80) ++size;
  fail("unexpected character '" + std::string(rest().substr(0, size)) + "'");
}

char GrammarText::take() {
  if (at_end()) fail_unexpected();
  return text_[position_++];
}

bool GrammarText::take_if(std::string_view expected) {
  if (!rest().starts_with(expected)) return false;
  position_ += expected.size();
  return true;
}

std::uint32_t GrammarText::take_count(std::uint32_t if_none) {
  if (peek() < '0' || peek() > '9') return if_none;
  std::uint64_t value = 0;
  while (peek() >= '0' && peek() <= '9')
    value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(take() - '0'),
                                    GrammarBuilder::kUnbounded - 1);
  return static_cast<std::uint32_t>(value);
}

std::uint32_t GrammarText::take_character() {
  const auto lead = static_cast<unsigned char>(take());
  if (lead == '\\') return take_escape();
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  std::uint32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) c = c << 6 | (static_cast<unsigned char>(take()) & 0x3Fu);
  return std::min(c, CodePointSet::kMax);
}

std::uint32_t GrammarText::take_escape() {
  const char c = take();
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'x':
      return take_hex(2);
    case 'u':
      return take_hex(4);
    case 'U':
      return take_hex(8);
    case '0':
      return 0;
    default:
      if (std::string_view("\\\"'[]-^/").find(c) != std::string_view::npos)
        return static_cast<unsigned char>(c);
  }
  fail(std::string("unknown escape sequence '\\") + c + "'");
}

std::uint32_t GrammarText::take_hex(int digits) {
  std::uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = take();
    const char lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<std::uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      fail("expected " + std::to_string(digits) + " hexadecimal digits in an escape sequence");
    }
  }
  if (value > CodePointSet::kMax) fail("code point exceeds U+10FFFF");
  return value;
}

void check_grammar_size(const GrammarBuilder& builder, std::string_view source) {
  if (source.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("grammar: it has " + std::to_string(source.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
}

}  // namespace troupe
