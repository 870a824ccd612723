#include "runtime/tokenizer/splitters.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/category.hpp"
#include "runtime/tokenizer/unicode.hpp"

// Each matcher below follows its expression alternative by alternative, with the engine's
// backtracking worked out by hand. A property test checks that they match as the engine does.

namespace troupe {
namespace {

/// Which character classes of the expressions a character belongs to.
enum Class : std::uint8_t {
  kLetter = 1,                ///< \p{L}
  kNumber = 2,                ///< \p{N}
  kSpace = 4,                 ///< \s
  kMark = 8,                  ///< \p{M}
  kPunctuationOrSymbol = 16,  ///< [\p{P}\p{S}]
  kUpperLike = 32,            ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLowerLike = 64,            ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
};

std::uint8_t classes_from_tables(char32_t c) {
  unsigned classes = 0;
  if (unicode::is_whitespace(c)) classes |= kSpace;
  switch (unicode::category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      classes |= kLetter | kUpperLike;
      break;
    case UTF8PROC_CATEGORY_LL:
      classes |= kLetter | kLowerLike;
      break;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      classes |= kLetter | kUpperLike | kLowerLike;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      classes |= kMark | kUpperLike | kLowerLike;
      break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      classes |= kNumber;
      break;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      classes |= kPunctuationOrSymbol;
      break;
    default:
      break;
  }
  return static_cast<std::uint8_t>(classes);
}

/// The classes of the Basic Multilingual Plane, which covers nearly all text.
const std::uint8_t* plane_table() {
  static const std::vector<std::uint8_t> table = [] {
    std::vector<std::uint8_t> classes(0x10000);
    for (char32_t c = 0; c < 0x10000; ++c) classes[c] = classes_from_tables(c);
    return classes;
  }();
  return table.data();
}

/// Reads classes along a text. Positions are bytes; positions past the end have no class.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), plane_(plane_table()) {}

  [[nodiscard]] std::size_t size() const { return text_.size(); }
  [[nodiscard]] char byte(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  [[nodiscard]] std::size_t after(std::size_t i) const {
    return i + unicode::char_bytes(static_cast<unsigned char>(text_[i]));
  }
  [[nodiscard]] std::uint8_t classes(std::size_t i) const {
    if (i >= text_.size()) return 0;
    const auto lead = static_cast<unsigned char>(text_[i]);
    if (lead < 0x80) return plane_[lead];
    const char32_t c = unicode::decode_at(text_, i);
    return c < 0x10000 ? plane_[c] : classes_from_tables(c);
  }
  [[nodiscard]] bool is(std::size_t i, unsigned set) const { return (classes(i) & set) != 0; }
  /// True at a character in none of `set`.
  [[nodiscard]] bool is_not(std::size_t i, unsigned set) const {
    return i < text_.size() && (classes(i) & set) == 0;
  }
  [[nodiscard]] bool is_newline(std::size_t i) const { return byte(i) == '\n' || byte(i) == '\r'; }

  /// End of the run of characters of `set` from `i`.
  [[nodiscard]] std::size_t run(std::size_t i, unsigned set) const {
    while (is(i, set)) i = after(i);
    return i;
  }
  [[nodiscard]] std::size_t run_not(std::size_t i, unsigned set) const {
    while (is_not(i, set)) i = after(i);
    return i;
  }
  [[nodiscard]] std::size_t newlines(std::size_t i) const {
    while (is_newline(i)) ++i;
    return i;
  }
  /// \p{N}{1,max}. Pre: a number at `i`.
  [[nodiscard]] std::size_t numbers(std::size_t i, int max) const {
    for (int n = 0; n < max && is(i, kNumber); ++n) i = after(i);
    return i;
  }

  /// End of 's|'t|'re|'ve|'m|'ll|'d at `i`, or `i`. Without case, s also stands for the long s
  /// (U+017F).
  [[nodiscard]] std::size_t contraction(std::size_t i, bool ignores_case) const {
    if (byte(i) != '\'') return i;
    const auto letter = [&](std::size_t k) {
      const char c = byte(k);
      return ignores_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(i + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
    if (ignores_case && text_.substr(i + 1, 2) == "\u017F") return i + 3;
    const char second = letter(i + 2);
    const bool is_pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                         (first == 'l' && second == 'l');
    return is_pair ? i + 3 : i;
  }

  /// \s*[\r\n]+|\s+(?!\S)|\s+ ; the first of them only `with_newlines`. Pre: a space at `i`.
  [[nodiscard]] std::size_t spaces(std::size_t i, bool with_newlines) const {
    std::size_t end = i;
    std::size_t last = i;  // start of the last space
    std::size_t behind_newline = i;
    while (is(end, kSpace)) {
      last = end;
      end = after(end);
      if (is_newline(last)) behind_newline = end;
    }
    if (with_newlines && behind_newline != i) return behind_newline;
    // A run before a visible character leaves its last space to it, unless it is a single space.
    return end == text_.size() || last == i ? end : last;
  }

 private:
  std::string_view text_;
  const std::uint8_t* plane_;
};

constexpr unsigned kWordlike = kLetter | kNumber;
constexpr unsigned kNotSymbol = kSpace | kLetter | kNumber;

/// ` ?[^\s\p{L}\p{N}]+` at `i`, or `i`.
std::size_t symbols(const Scanner& text, std::size_t i) {
  const std::size_t begin = text.byte(i) == ' ' ? i + 1 : i;
  const std::size_t end = text.run_not(begin, kNotSymbol);
  return end == begin ? i : end;
}

std::optional<ByteRange> match_gpt2(std::string_view bytes, std::size_t from) {
  const Scanner text(bytes);
  if (from >= text.size()) return std::nullopt;
  std::size_t end = text.contraction(from, false);
  if (end != from) return ByteRange{from, end};
  const std::size_t begin = text.byte(from) == ' ' ? from + 1 : from;
  const std::uint8_t classes = text.classes(begin);
  if ((classes & kLetter) != 0) return ByteRange{from, text.run(begin, kLetter)};
  if ((classes & kNumber) != 0) return ByteRange{from, text.run(begin, kNumber)};
  end = symbols(text, from);
  return ByteRange{from, end != from ? end : text.spaces(from, false)};
}

/// The family of cl100k: Llama 3 takes numbers by three, Qwen 2 one by one.
template <int kMaxDigits>
std::optional<ByteRange> match_cl100k(std::string_view bytes, std::size_t from) {
  const Scanner text(bytes);
  if (from >= text.size()) return std::nullopt;
  std::size_t end = text.contraction(from, true);
  if (end != from) return ByteRange{from, end};
  const std::uint8_t classes = text.classes(from);
  if ((classes & kLetter) != 0) return ByteRange{from, text.run(from, kLetter)};
  if ((classes & kNumber) != 0) return ByteRange{from, text.numbers(from, kMaxDigits)};
  if (!text.is_newline(from)) {
    const std::size_t second = text.after(from);
    if (text.is(second, kLetter)) return ByteRange{from, text.run(second, kLetter)};
  }
  end = symbols(text, from);
  return ByteRange{from, end != from ? text.newlines(end) : text.spaces(from, true)};
}

/// [upper]*[lower]+ at `i`, or `i`.
std::size_t capitalized(const Scanner& text, std::size_t i) {
  // The last character so far that could also be the lower-case part, for the case that no other
  // lower-case character follows.
  std::size_t behind_last_lower = i;
  std::size_t end = i;
  while (text.is(end, kUpperLike)) {
    const bool is_lower = text.is(end, kLowerLike);
    end = text.after(end);
    if (is_lower) behind_last_lower = end;
  }
  const std::size_t lower_end = text.run(end, kLowerLike);
  return lower_end != end ? lower_end : behind_last_lower;
}

/// [upper]+[lower]* at `i`, or `i`.
std::size_t shouted(const Scanner& text, std::size_t i) {
  const std::size_t end = text.run(i, kUpperLike);
  return end == i ? i : text.run(end, kLowerLike);
}

std::optional<ByteRange> match_o200k(std::string_view bytes, std::size_t from) {
  const Scanner text(bytes);
  if (from >= text.size()) return std::nullopt;
  const bool has_prefix = !text.is_newline(from) && text.is_not(from, kWordlike);
  for (const auto word : {capitalized, shouted}) {
    for (const std::size_t begin : {has_prefix ? text.after(from) : from, from}) {
      const std::size_t end = word(text, begin);
      if (end != begin) return ByteRange{from, text.contraction(end, true)};
    }
  }
  if (text.is(from, kNumber)) return ByteRange{from, text.numbers(from, 3)};
  std::size_t end = symbols(text, from);
  if (end == from) return ByteRange{from, text.spaces(from, true)};
  while (text.is_newline(end) || text.byte(end) == '/') ++end;
  return ByteRange{from, end};
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// End of DeepSeek's third expression at `i`, or `i`: it leaves numbers and controls unmatched.
std::size_t deepseek_word(const Scanner& text, std::size_t i) {
  constexpr unsigned kWord = kLetter | kMark;
  const std::uint8_t classes = text.classes(i);
  const auto first = static_cast<unsigned char>(text.byte(i));
  if (first < 0x80 && (classes & kPunctuationOrSymbol) != 0 && is_ascii_letter(text.byte(i + 1))) {
    ++i;
    while (is_ascii_letter(text.byte(i))) ++i;
    return i;
  }
  if (!text.is_newline(i) && (classes & (kLetter | kPunctuationOrSymbol)) == 0) {
    const std::size_t second = text.after(i);
    if (text.is(second, kWord)) return text.run(second, kWord);
  }
  if ((classes & kWord) != 0) return text.run(i, kWord);
  const std::size_t begin = text.byte(i) == ' ' ? i + 1 : i;
  const std::size_t end = text.run(begin, kPunctuationOrSymbol);
  if (end != begin) return text.newlines(end);
  return (classes & kSpace) != 0 ? text.spaces(i, true) : i;
}

std::optional<ByteRange> match_deepseek_words(std::string_view bytes, std::size_t from) {
  const Scanner text(bytes);
  for (; from < text.size(); from = text.after(from)) {
    const std::size_t end = deepseek_word(text, from);
    if (end != from) return ByteRange{from, end};
  }
  return std::nullopt;
}

std::optional<ByteRange> match_numbers_by_three(std::string_view bytes, std::size_t from) {
  const Scanner text(bytes);
  for (; from < text.size(); from = text.after(from)) {
    if (text.is(from, kNumber)) return ByteRange{from, text.numbers(from, 3)};
  }
  return std::nullopt;
}

/// Runs of Chinese ideographs and Japanese kana.
std::optional<ByteRange> match_cjk(std::string_view text, std::size_t from) {
  const auto is_cjk = [&](std::size_t i) {
    if (i >= text.size() || static_cast<unsigned char>(text[i]) < 0xE3) return false;
    const char32_t c = unicode::decode_at(text, i);
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
  };
  for (; from < text.size(); ++from) {
    if (!is_cjk(from)) continue;
    std::size_t end = from;
    while (is_cjk(end)) end += 3;
    return ByteRange{from, end};
  }
  return std::nullopt;
}

struct KnownExpression {
  std::string_view expression;
  Splitter splitter;
};

constexpr KnownExpression kKnown[] = {
    {byte_level::kPattern, match_gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_cl100k<3>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_cl100k<1>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_o200k},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     match_deepseek_words},
    {R"(\p{N}{1,3})", match_numbers_by_three},
    {"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", match_cjk},
};

}  // namespace

Splitter splitter_for(std::string_view expression) noexcept {
  for (const KnownExpression& known : kKnown) {
    if (known.expression == expression) return known.splitter;
  }
  return nullptr;
}

}  // namespace troupe
