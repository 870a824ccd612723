#pragma once
// The pattern of a Replace or Split component: a fixed string or a regular expression.

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/aligned_text.hpp"
#include "runtime/tokenizer/regex.hpp"

namespace troupe {

class Pattern {
 public:
  /// From {"String": text} or {"Regex": expression}.
  static Result<Pattern> from_json(const nlohmann::json& json);

  /// The first match at or after byte `from`. Throws WorkStopped if `work` is exhausted or
  /// cancelled.
  [[nodiscard]] std::optional<ByteRange> find(std::string_view text, std::size_t from,
                                              WorkBudget& work) const;
  /// The expression, empty for a fixed string.
  [[nodiscard]] const std::string& expression() const noexcept { return expression_; }

 private:
  std::string literal_;
  std::string expression_;
  std::shared_ptr<const Regex> regex_;
};

/// Calls visit(range, is_match) for every match and every gap between matches, in order; together
/// they cover `text`. `find(text, from)` returns the next match. Empty matches are visited and
/// skipped.
template <class Find, class Visit>
void for_each_match(std::string_view text, const Find& find, const Visit& visit) {
  std::size_t begin = 0;  // end of the visited part
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::optional<ByteRange> match = find(text, from);
    if (!match) break;
    if (match->begin > begin) visit(ByteRange{begin, match->begin}, false);
    visit(*match, true);
    begin = match->end;
    from = match->end;
    if (match->empty()) {
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
    }
  }
  if (begin < text.size()) visit(ByteRange{begin, text.size()}, false);
}

}  // namespace troupe
