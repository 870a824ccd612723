#include "runtime/structured_output/grammar_text.hpp"

#include <algorithm>

namespace troupe {

std::size_t GrammarText::line() const {
  return 1 + static_cast<std::size_t>(std::count(
                 text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(position_), '\n'));
}

void GrammarText::fail(const std::string& what) const {
  throw GrammarRefused("grammar: " + what + " in line " + std::to_string(line()));
}

char GrammarText::take() {
  if (at_end()) fail("the grammar ends too soon");
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
  fail(std::string("an unknown escape '\\") + c + "'");
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
      fail("an escape needs " + std::to_string(digits) + " hexadecimal digits");
    }
  }
  if (value > CodePointSet::kMax) fail("a code point over U+10FFFF");
  return value;
}

void check_grammar_size(const GrammarBuilder& builder, std::string_view source) {
  if (source.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("grammar: it has " + std::to_string(source.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
}

}  // namespace troupe
