#pragma once
// From the ways in which models write arguments to JSON.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

inline constexpr std::string_view kJsonSpace = " \t\r\n";

/// `text` as a JSON string without its quotes.
[[nodiscard]] std::string json_escaped(std::string_view text);

/// A value written as plain text: JSON or a Python literal if it is one, else a string.
[[nodiscard]] std::string json_of_text(std::string_view text);

/// A Python literal (strings, numbers, True, False, None, lists, tuples, dicts) with JSON's words
/// too; nullopt if `text` is something else.
[[nodiscard]] std::optional<std::string> json_of_python(std::string_view text);

/// FunctionGemma's {a:1,b:<escape>x<escape>}: strings stand between markers, keys have no quotes.
/// nullopt if `text` is something else.
[[nodiscard]] std::optional<std::string> json_of_escaped(std::string_view text);

/// The brackets around a position in JSON text; those in strings do not count.
class JsonNesting {
 public:
  /// Moves behind the next character.
  void add(char c) noexcept {
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = c == '\\';
      is_in_string_ = c != '"';
    } else if (c == '"') {
      is_in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
    }
  }
  [[nodiscard]] bool is_in_string() const noexcept { return is_in_string_; }
  /// Negative: behind the end of what the text began in.
  [[nodiscard]] int depth() const noexcept { return depth_; }

 private:
  int depth_ = 0;
  bool is_in_string_ = false;
  bool is_escaped_ = false;
};

/// Finds the end of a value in text that arrives in pieces: the first of `ends` that is outside of
/// brackets and strings. Quotes are those of Python or JSON; or, for FunctionGemma, the marker
/// <escape>.
class ValueScanner {
 public:
  explicit ValueScanner(bool has_escape_markers = false) : escape_markers_(has_escape_markers) {}
  /// Continues where the last call ended; `text` is the value so far. Returns the position of the
  /// end, or npos: more text is needed.
  [[nodiscard]] std::size_t find(std::string_view text, std::string_view ends);

 private:
  bool escape_markers_;
  std::size_t scanned_ = 0;
  int depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
};

}  // namespace troupe
