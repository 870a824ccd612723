#pragma once
// What the languages for grammars have in common: reading their text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// A position in a grammar's text. Everything that reads throws GrammarRefused, with line and
/// column, if the text is wrong there.
class GrammarText {
 public:
  explicit GrammarText(std::string_view text) : text_(text) {}

  /// In bytes from the beginning.
  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t line() const { return line_of(position_); }
  [[noreturn]] void fail(const std::string& what) const { fail_at(position_, what); }
  [[noreturn]] void fail_at(std::size_t position, const std::string& what) const;
  /// The character at the position, or the end, is not expected.
  [[noreturn]] void fail_unexpected() const;
  [[nodiscard]] bool at_end() const { return position_ >= text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[position_]; }
  [[nodiscard]] std::string_view rest() const { return text_.substr(position_); }
  void skip(std::size_t size = 1) { position_ += size; }
  char take();
  bool take_if(std::string_view expected);
  /// Digits; `if_none` if there are none.
  std::uint32_t take_count(std::uint32_t if_none);
  /// A character of UTF-8, or an escape.
  std::uint32_t take_character();

 private:
  [[nodiscard]] std::size_t line_of(std::size_t position) const;
  std::uint32_t take_escape();
  std::uint32_t take_hex(int digits);

  std::string_view text_;
  std::size_t position_ = 0;
};

/// Throws GrammarRefused if the source is over the limit.
void check_grammar_size(const GrammarBuilder& builder, std::string_view source);

}  // namespace troupe
