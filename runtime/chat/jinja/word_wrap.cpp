#include "runtime/chat/jinja/word_wrap.hpp"

#include <algorithm>

#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

using Text32 = std::u32string_view;

bool is_blank(char32_t c) { return c == ' ' || (c >= 9 && c <= 13); }
bool is_letter(char32_t c) { return is_word(c) && !is_decimal(c); }
bool is_word_punctuation(char32_t c) {
  return is_word(c) || Text32(U"!\"'&.,?").find(c) != Text32::npos;
}

/// Splits a line at possible breaks: the alternatives of textwrap's wordsep_re in their order.
class ChunkReader {
 public:
  ChunkReader(Text32 line, bool breaks_on_hyphens) : line_(line), hyphens_(breaks_on_hyphens) {}

  /// The end of the chunk that starts at `begin`. Pre: not at the end of the line.
  [[nodiscard]] std::size_t end_of_chunk(std::size_t begin) const {
    std::size_t end = begin;
    if (is_blank(line_[begin])) {
      while (end < line_.size() && is_blank(line_[end])) ++end;
      return end;
    }
    if (hyphens_ && begin > 0 && starts_dash(begin)) return end_of_hyphens(begin);
    for (++end; end < line_.size() && !is_blank(line_[end]); ++end) {
      if (!hyphens_) continue;
      if (line_[end] == '-' && is_after_hyphenated(end) && is_before_hyphenated(end + 1)) {
        return end + 1;
      }
      if (starts_dash(end)) return end;
    }
    return end;
  }

 private:
  [[nodiscard]] bool letter_at(std::size_t i) const {
    return i < line_.size() && is_letter(line_[i]);
  }
  [[nodiscard]] std::size_t end_of_hyphens(std::size_t i) const {
    while (i < line_.size() && line_[i] == '-') ++i;
    return i;
  }
  /// An em-dash, that is two hyphens or more between words, at `i` > 0.
  [[nodiscard]] bool starts_dash(std::size_t i) const {
    if (line_[i] != '-' || !is_word_punctuation(line_[i - 1])) return false;
    const std::size_t end = end_of_hyphens(i);
    return end >= i + 2 && end < line_.size() && is_word(line_[end]);
  }
  /// Two letters, or letter, hyphen, letter, before the hyphen at `i`.
  [[nodiscard]] bool is_after_hyphenated(std::size_t i) const {
    if (i < 2 || !letter_at(i - 1)) return false;
    return letter_at(i - 2) || (i >= 3 && line_[i - 2] == '-' && letter_at(i - 3));
  }
  [[nodiscard]] bool is_before_hyphenated(std::size_t i) const {
    if (!letter_at(i)) return false;
    return letter_at(i + 1) || (i + 1 < line_.size() && line_[i + 1] == '-' && letter_at(i + 2));
  }

  Text32 line_;
  bool hyphens_;
};

bool is_all_space(Text32 text) { return std::all_of(text.begin(), text.end(), is_space); }

/// How much of an overlong chunk goes into the remaining `space`.
std::size_t broken_size(Text32 chunk, std::size_t space, bool breaks_on_hyphens) {
  if (!breaks_on_hyphens || chunk.size() <= space || space == 0)
    return std::min(space, chunk.size());
  const std::size_t hyphen = chunk.substr(0, space).rfind('-');
  const bool cuts = hyphen != Text32::npos && hyphen > 0 &&
                    chunk.substr(0, hyphen).find_first_not_of('-') != Text32::npos;
  return cuts ? hyphen + 1 : space;
}

}  // namespace

std::vector<std::string> wrap_words(std::string_view text, const WrapStyle& style, Budget& budget) {
  budget.charge_characters(2 * text.size());
  const std::u32string line = to_code_points(text);
  const ChunkReader reader(line, style.breaks_on_hyphens);
  std::vector<std::string> lines;
  std::size_t begin = 0;  // of the text not yet in lines
  std::size_t end = 0;    // of the chunk that starts there
  const auto next_chunk = [&] { end = begin < line.size() ? reader.end_of_chunk(begin) : begin; };
  next_chunk();
  while (begin < line.size()) {
    budget.charge();
    if (!lines.empty() && is_all_space(Text32(line).substr(begin, end - begin))) {
      begin = end;
      next_chunk();
    }
    const std::size_t line_begin = begin;
    std::size_t last_begin = begin;  // of the line's last chunk
    const auto size = [&] { return begin - line_begin; };
    while (begin < line.size() && size() + (end - begin) <= style.width) {
      last_begin = begin;
      begin = end;
      next_chunk();
    }
    if (end - begin > style.width) {
      const Text32 chunk = Text32(line).substr(begin, end - begin);
      if (style.breaks_long_words) {
        last_begin = begin;
        begin += broken_size(chunk, style.width - size(), style.breaks_on_hyphens);
      } else if (size() == 0) {
        last_begin = begin;
        begin = end;
        next_chunk();
      }
    }
    std::size_t line_end = begin;
    if (line_end > last_begin &&
        is_all_space(Text32(line).substr(last_begin, line_end - last_begin))) {
      line_end = last_begin;
    }
    if (line_end > line_begin || last_begin > line_begin) {
      lines.push_back(to_utf8(Text32(line).substr(line_begin, line_end - line_begin)));
    }
  }
  return lines;
}

}  // namespace troupe::jinja
