#pragma once
// How a text puts white space between its tokens.

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

/// Learns from the text what a grammar leaves open: the runs of white space between two characters.
/// Until it has seen one, as Python's json.dumps writes them.
class WhitespaceStyle {
 public:
  void read(char c);
  void read(std::string_view text) {
    for (const char c : text) read(c);
  }
  /// White space up to `next`, if the text goes on as it has so far.
  [[nodiscard]] std::string_view before(char next) const;

  [[nodiscard]] static bool is_blank(char c) noexcept {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
  }

 private:
  char last_ = 0;    ///< not blank
  std::string run_;  ///< behind it
  std::map<std::pair<char, char>, std::string> runs_;
  std::string behind_colon_ = " ", behind_comma_ = " ";
};

}  // namespace troupe
