#pragma once
// The regular expressions of a tokenizer.json. They are written for Oniguruma (Ruby syntax) and run
// on PCRE2.

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"
#include "runtime/tokenizer/aligned_text.hpp"

namespace troupe {

/// A compiled pattern. Thread-safe.
///
/// Differences between the engines are translated before compiling (regex_translator.hpp):
/// character classes, ^ and $ (always at line ends in Ruby), and intersections of the form
/// [A&&[^B]]. Other intersections and nested classes are rejected.
class Regex {
 public:
  /// Errors: kUnsupported with the pattern and the reason.
  static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  /// The first match at or after byte `from`. Pre: `text` is valid UTF-8, `from` is at a character
  /// boundary. Throws WorkStopped if `work` is exhausted or cancelled, or if the pattern exceeds
  /// the backtracking limit.
  [[nodiscard]] std::optional<ByteRange> find(std::string_view text, std::size_t from,
                                              WorkBudget& work) const;

 private:
  explicit Regex(void* code) : code_(code) {}
  void* code_;  ///< pcre2_code
};

}  // namespace troupe
