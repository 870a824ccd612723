#include "runtime/config/config_file.hpp"

#include <algorithm>
#include <cctype>

#include "runtime/base/file.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

/// A cursor over the text; lists may span lines.
class Parser {
 public:
  Parser(std::string_view text, std::string_view file_name) : text_(text), file_name_(file_name) {}

  Result<std::vector<ConfigEntry>> parse() {
    std::vector<ConfigEntry> entries;
    std::string section;
    for (skip_blank(true); !at_end(); skip_blank(true)) {
      if (peek() == '[') {
        ++position_;
        section = take_name();
        if (section.empty() || !take(']')) return failure("expected [section]");
      } else {
        ConfigEntry entry;
        entry.section = section;
        entry.line = line_;
        entry.key = take_name();
        if (entry.key.empty()) return failure("expected a key");
        if (section.empty())
          return failure("key '" + entry.key + "' comes before the first [section]");
        skip_blank(false);
        if (!take('=')) return failure("expected '=' after '" + entry.key + "'");
        skip_blank(false);
        RETURN_IF_ERROR(take_value(entry));
        entries.push_back(std::move(entry));
      }
      skip_blank(false);
      if (!at_end() && peek() != '\n') return failure("unexpected text after the value");
    }
    return entries;
  }

 private:
  [[nodiscard]] bool at_end() const { return position_ == text_.size(); }
  [[nodiscard]] char peek() const { return text_[position_]; }
  bool take(char c) {
    if (at_end() || peek() != c) return false;
    ++position_;
    return true;
  }
  Error failure(const std::string& what) const {
    return invalid_argument(std::string(file_name_) + ":" + std::to_string(line_) + ": " + what);
  }
  void skip_blank(bool over_lines) {
    for (; !at_end(); ++position_) {
      const char c = peek();
      if (c == ';') {
        while (!at_end() && peek() != '\n') ++position_;
        if (at_end()) return;
      }
      if (peek() == '\n') {
        if (!over_lines) return;
        ++line_;
      } else if (peek() != ' ' && peek() != '\t' && peek() != '\r') {
        return;
      }
    }
  }
  std::string take_name() {
    const std::size_t start = position_;
    while (!at_end() && (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '-' ||
                         peek() == '_' || peek() == '.')) {
      ++position_;
    }
    return std::string(text_.substr(start, position_ - start));
  }
  Result<std::string> take_scalar() {
    if (at_end()) return failure("expected a value");
    const char open = peek();
    if (open == '"' || open == '\'' || open == '<') {
      const char close = open == '<' ? '>' : open;
      std::string value;
      for (++position_; !at_end() && peek() != close; ++position_) {
        if (peek() == '\n') return failure("string is not closed on its line");
        if (open == '"' && peek() == '\\' && position_ + 1 < text_.size()) {
          ++position_;
          constexpr std::string_view kEscapes = "nrt", kMeanings = "\n\r\t";
          const std::size_t escape = kEscapes.find(peek());
          value.push_back(escape == std::string_view::npos ? peek() : kMeanings[escape]);
        } else {
          value.push_back(peek());
        }
      }
      if (!take(close)) return failure("string is not closed");
      return value;
    }
    const std::size_t start = position_;
    while (!at_end() && std::string_view(" \t\r\n;,]").find(peek()) == std::string_view::npos)
      ++position_;
    std::string value(text_.substr(start, position_ - start));
    const bool number =
        !value.empty() && (std::isdigit(static_cast<unsigned char>(value[0])) != 0 ||
                           value[0] == '-' || value[0] == '+' || value[0] == '.');
    if (!number && value != "true" && value != "false") {
      return failure("'" + value + "' is not a value; strings need double quotes");
    }
    return value;
  }
  Result<void> take_value(ConfigEntry& entry) {
    if (!take('[')) {
      ASSIGN_OR_RETURN(entry.value, take_scalar());
      return {};
    }
    entry.is_list = true;
    for (skip_blank(true); !take(']'); skip_blank(true)) {
      ASSIGN_OR_RETURN(std::string element, take_scalar());
      entry.list.push_back(std::move(element));
      skip_blank(true);
      if (!take(',') && (at_end() || peek() != ']'))
        return failure("expected ',' or ']' in a list");
    }
    return {};
  }

  std::string_view text_;
  std::string_view file_name_;
  std::size_t position_ = 0;
  int line_ = 1;
};

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view file_name) {
  return Parser(text, file_name).parse();
}

Result<std::vector<ConfigEntry>> read_config_file(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxFileBytes));
  return parse_config(text, file.filename().string());
}

}  // namespace troupe
