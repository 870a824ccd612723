#include "runtime/chat/jinja/lexer.hpp"

#include <algorithm>
#include <array>

#include "runtime/chat/jinja/numbers.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

/// Normalizes newlines, and removes the one newline that may end the source.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  return text;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (position_ < source_.size()) read_data_and_tag();
    add(Token::Kind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const {
    return std::string_view(source_).substr(position_);
  }
  [[nodiscard]] bool at(std::string_view text) const { return rest().starts_with(text); }

  void add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text), {}});
  }
  /// Advances by `size` bytes and counts their lines.
  void skip(std::size_t size) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                   source_.begin() + static_cast<std::ptrdiff_t>(position_ + size), '\n'));
    position_ += size;
    line_starting_ = size > 0 && source_[position_ - 1] == '\n';
  }
  [[nodiscard]] std::size_t num_space_bytes(std::size_t from) const {
    const std::string_view text = std::string_view(source_).substr(from);
    return text.size() - strip(text, Side::kLeft).size();
  }

  /// Reads text up to the next tag, then the tag.
  void read_data_and_tag() {
    std::size_t tag = position_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(Token::Kind::kData, source_.substr(position_));
        position_ = source_.size();
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const std::string_view text = std::string_view(source_).substr(position_, tag - position_);
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    add_data(text, kind, sign);
    skip(tag - position_);
    const std::size_t begin_size = sign == '-' || (sign == '+') ? 3 : 2;
    if (kind == '#') {
      skip_comment(begin_size);
    } else if (kind == '%') {
      if (!read_raw(begin_size)) read_tag(Token::Kind::kBlockBegin, begin_size);
    } else {
      read_tag(Token::Kind::kVariableBegin, begin_size);
    }
  }

  /// Adds the text before a tag, without the trailing whitespace removed by the tag's sign or
  /// lstrip_blocks.
  void add_data(std::string_view text, char kind, char sign) {
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && kind != '{') {
      const std::size_t line_start = text.rfind('\n') + 1;
      if ((line_start > 0 || line_starting_) && strip(text.substr(line_start)).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) add(Token::Kind::kData, std::string(text));
  }

  /// The size of the end of a block or comment ("%}", "-%}", "+%}") at `from` with the whitespace
  /// it removes; 0 if there is none.
  [[nodiscard]] std::size_t end_size(std::size_t from, std::string_view mark, bool trims_newline,
                                     bool allows_plus) const {
    const std::string_view text = std::string_view(source_).substr(from);
    if (text.starts_with('-') && text.substr(1).starts_with(mark)) {
      const std::size_t size = 1 + mark.size();
      return size + num_space_bytes(from + size);
    }
    if (allows_plus && text.starts_with('+') && text.substr(1).starts_with(mark)) {
      return 1 + mark.size();
    }
    if (!text.starts_with(mark)) return 0;
    const std::size_t size = mark.size();
    return size + (trims_newline && text.substr(size).starts_with('\n') ? 1 : 0);
  }

  void skip_comment(std::size_t begin_size) {
    std::size_t end = position_ + begin_size;
    for (;; ++end) {
      end = source_.find('#', end);
      if (end == std::string::npos) fail_syntax(line_, "Missing end of comment tag");
      if (source_.compare(end, 2, "#}") == 0) break;
    }
    const std::size_t start = position_ + begin_size;
    if (end > start && (source_[end - 1] == '-' || source_[end - 1] == '+')) --end;
    skip(end + end_size(end, "#}", true, true) - position_);
  }

  /// Reads {% raw %} ... {% endraw %}, if it starts here.
  bool read_raw(std::size_t begin_size) {
    std::size_t inside = position_ + begin_size;
    inside += num_space_bytes(inside);
    if (source_.compare(inside, 3, "raw") != 0) return false;
    inside += 3;
    inside += num_space_bytes(inside);
    const std::size_t begin_end = end_size(inside, "%}", false, false);
    if (begin_end == 0) return false;
    skip(inside + begin_end - position_);
    for (std::size_t end = source_.find("{%", position_); end != std::string::npos;
         end = source_.find("{%", end + 1)) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
      std::size_t word = end + (sign == '-' || sign == '+' ? 3 : 2);
      word += num_space_bytes(word);
      if (source_.compare(word, 6, "endraw") != 0) continue;
      word += 6;
      word += num_space_bytes(word);
      const std::size_t size = end_size(word, "%}", true, true);
      if (size == 0) continue;
      add_data(std::string_view(source_).substr(position_, end - position_), '%', sign);
      skip(word + size - position_);
      return true;
    }
    fail_syntax(line_, "Missing end of raw directive");
  }

  void read_tag(Token::Kind begin, std::size_t begin_size) {
    const bool is_block = begin == Token::Kind::kBlockBegin;
    add(begin, {});
    skip(begin_size);
    std::vector<char> open;
    while (position_ < source_.size()) {
      if (const std::size_t space = num_space_bytes(position_)) {
        skip(space);
        continue;
      }
      if (open.empty()) {
        const std::size_t size = is_block ? end_size(position_, "%}", true, true)
                                          : end_size(position_, "}}", false, false);
        if (size != 0) {
          add(is_block ? Token::Kind::kBlockEnd : Token::Kind::kVariableEnd, {});
          skip(size);
          return;
        }
      }
      if (!read_number() && !read_name() && !read_string()) read_operator(open);
    }
  }

  [[nodiscard]] std::size_t digits_end(std::size_t from) const {
    std::size_t end = from;
    while (end < source_.size() &&
           (is_digit_char(source_[end]) ||
            (source_[end] == '_' && end > from && is_digit_char(source_[end - 1]) &&
             end + 1 < source_.size() && is_digit_char(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  bool read_number() {
    if (!is_digit_char(source_[position_])) return false;
    const std::size_t whole_end = digits_end(position_);
    // "a.1.2" accesses items 1 and 2: no float starts after a dot.
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    std::size_t end = whole_end;
    if (!after_dot) {
      if (source_.compare(end, 1, ".") == 0 && digits_end(end + 1) > end + 1) {
        end = digits_end(end + 1);
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (digits_end(exponent) > exponent) end = digits_end(exponent);
      }
    }
    Token token{Token::Kind::kNumber, line_, {}, {}};
    if (end > whole_end) {
      token.number = Value(parse_float(source_.substr(position_, end - position_)).value());
    } else {
      end = integer_end();
      std::optional<Value> number = parse_integer(source_.substr(position_, end - position_), 0);
      if (!number) fail_syntax(line_, "an integer has too many digits");
      token.number = *std::move(number);
    }
    tokens_.push_back(std::move(token));
    skip(end - position_);
    return true;
  }

  /// Decimal, 0x, 0o or 0b; a decimal has no leading zero.
  [[nodiscard]] std::size_t integer_end() const {
    if (source_[position_] != '0') return digits_end(position_);
    const char letter =
        position_ + 1 < source_.size() ? static_cast<char>(source_[position_ + 1] | 0x20) : ' ';
    const std::string_view digits = letter == 'x'   ? "0123456789abcdefABCDEF"
                                    : letter == 'o' ? "01234567"
                                    : letter == 'b' ? "01"
                                                    : "";
    std::size_t end = position_ + 2;
    const auto is_one = [&](std::size_t place) {
      return place < source_.size() && digits.find(source_[place]) != std::string_view::npos;
    };
    while (!digits.empty() &&
           (is_one(end) || (source_.compare(end, 1, "_") == 0 && is_one(end + 1)))) {
      ++end;
    }
    if (!digits.empty() && end > position_ + 2) return end;
    end = position_ + 1;
    while (
        end < source_.size() &&
        (source_[end] == '0' || (source_[end] == '_' && source_.compare(end + 1, 1, "0") == 0))) {
      ++end;
    }
    return end;
  }

  bool read_name() {
    std::size_t end = position_;
    if (!is_identifier_start(decode_at(source_, end))) return false;
    while (end < source_.size()) {
      std::size_t next = end;
      if (!is_identifier_part(decode_at(source_, next))) break;
      end = next;
    }
    add(Token::Kind::kName, source_.substr(position_, end - position_));
    skip(end - position_);
    return true;
  }

  bool read_string() {
    const char quote = source_[position_];
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) {
      fail_syntax(line_,
                  "unexpected char " + std::string(1, quote) + " at " + std::to_string(position_));
    }
    add(Token::Kind::kString,
        unescape(std::string_view(source_).substr(position_ + 1, end - position_ - 1)));
    skip(end + 1 - position_);
    return true;
  }

  /// Python's escapes in string literals.
  [[nodiscard]] std::string unescape(std::string_view text) const {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        plain += text[i];
        continue;
      }
      const char letter = text[++i];
      static constexpr std::string_view kLetters = "abfnrtv\\'\"";
      static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t found = kLetters.find(letter); found != std::string_view::npos) {
        plain += kMeanings[found];
      } else if (letter == '\n') {
        continue;
      } else if (letter >= '0' && letter <= '7') {
        std::size_t size = 1;
        while (size < 3 && i + size < text.size() && text[i + size] >= '0' &&
               text[i + size] <= '7') {
          ++size;
        }
        append_code(plain, text.substr(i, size), 8);
        i += size - 1;
      } else if (letter == 'x' || letter == 'u' || letter == 'U') {
        const std::size_t size = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
        const std::string_view digits = text.substr(i + 1, size);
        if (digits.size() != size) fail_syntax(line_, "truncated escape in a string");
        append_code(plain, digits, 16);
        i += size;
      } else if (letter == 'N') {
        fail_syntax(line_, "character names in strings are not supported");
      } else {
        plain += '\\';
        plain += letter;
      }
    }
    return plain;
  }

  void append_code(std::string& text, std::string_view digits, int base) const {
    char32_t code = 0;
    for (const char c : digits) {
      const std::size_t digit = std::string_view("0123456789abcdef")
                                    .find(static_cast<char>(c >= 'A' && c <= 'F' ? c | 0x20 : c));
      if (digit >= static_cast<std::size_t>(base)) {
        fail_syntax(line_, "bad escape in a string");
      }
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (code > 0x10FFFF) fail_syntax(line_, "an escape in a string is not a character");
    append_utf8(text, code);
  }

  void read_operator(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view symbol : kOperators) {
      if (!at(symbol)) continue;
      check_balance(symbol, open);
      add(Token::Kind::kOperator, std::string(symbol));
      skip(symbol.size());
      return;
    }
    std::size_t end = position_;
    decode_at(source_, end);
    fail_syntax(
        line_, "unexpected char '" + source_.substr(position_, end - position_) + "' at " +
                   std::to_string(num_code_points(std::string_view(source_).substr(0, position_))));
  }

  void check_balance(std::string_view symbol, std::vector<char>& open) const {
    if (symbol == "(") open.push_back(')');
    if (symbol == "[") open.push_back(']');
    if (symbol == "{") open.push_back('}');
    if (symbol != ")" && symbol != "]" && symbol != "}") return;
    if (open.empty()) fail_syntax(line_, "unexpected '" + std::string(symbol) + "'");
    if (open.back() != symbol[0]) {
      fail_syntax(line_, "unexpected '" + std::string(symbol) + "', expected '" +
                             std::string(1, open.back()) + "'");
    }
    open.pop_back();
  }

  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

void fail_syntax(int line, const std::string& message) {
  throw TemplateError(TemplateError::Kind::kSyntax,
                      "line " + std::to_string(line) + ": " + message);
}

}  // namespace troupe::jinja
