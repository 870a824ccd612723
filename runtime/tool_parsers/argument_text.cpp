#include "runtime/tool_parsers/argument_text.hpp"

#include <algorithm>
#include <cctype>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kEscape = "<escape>";
constexpr int kMaxDepth = 64;

/// Reads one literal of either notation and appends it as JSON.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, bool has_escape_markers)
      : text_(text), escape_markers_(has_escape_markers) {}

  std::optional<std::string> read() {
    std::string json;
    if (!value(json, 0)) return std::nullopt;
    skip_space();
    if (at_ != text_.size()) return std::nullopt;
    return json;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && kJsonSpace.find(text_[at_]) != kJsonSpace.npos) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool value(std::string& json, int depth) {
    skip_space();
    if (at_ >= text_.size() || depth > kMaxDepth) return false;
    const char c = text_[at_];
    if (escape_markers_ && text_.substr(at_).starts_with(kEscape)) return marked_string(json);
    if (!escape_markers_ && (c == '"' || c == '\'')) return string(json);
    if (c == '[' || c == '(') return sequence(json, c == '[' ? ']' : ')', depth);
    if (c == '{') return dict(json, depth);
    return word(json);
  }

  bool marked_string(std::string& json) {
    at_ += kEscape.size();
    const std::size_t end = text_.find(kEscape, at_);
    if (end == text_.npos) return false;
    json += '"' + json_escaped(text_.substr(at_, end - at_)) + '"';
    at_ = end + kEscape.size();
    return true;
  }

  bool string(std::string& json) {
    const char quote = text_[at_++];
    std::string content;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] != '\\') {
        content += text_[at_++];
      } else if (!escape(content)) {
        return false;
      }
    }
    if (at_ >= text_.size()) return false;
    ++at_;
    json += '"' + json_escaped(content) + '"';
    return true;
  }

  bool escape(std::string& content) {
    if (at_ + 1 >= text_.size()) return false;
    const char c = text_[at_ + 1];
    at_ += 2;
    constexpr std::string_view kNames = "nrtbfav0", kValues("\n\r\t\b\f\a\v\0", 8);
    if (const std::size_t known = kNames.find(c); known != kNames.npos) {
      content += kValues[known];
    } else if (c == 'u' || c == 'x' || c == 'U') {
      return code_point(content, c == 'u' ? 4 : c == 'x' ? 2 : 8);
    } else if (c == '\\' || c == '\'' || c == '"' || c == '/') {
      content += c;
    } else if (c != '\n') {  // a backslash and a line break stand for nothing
      (content += '\\') += c;
    }
    return true;
  }

  /// Hexadecimal digits; surrogates come in pairs, as in JSON.
  bool code_point(std::string& content, std::size_t num_digits) {
    const std::string_view digits = text_.substr(at_, num_digits);
    if (digits.size() < num_digits ||
        !std::ranges::all_of(digits, [](unsigned char d) { return std::isxdigit(d) != 0; })) {
      return false;
    }
    at_ += num_digits;
    const auto code = static_cast<std::uint32_t>(std::stoul(std::string(digits), nullptr, 16));
    std::string json = "\"";
    const auto append_unit = [&json](std::uint32_t unit) {
      constexpr std::string_view kHex = "0123456789abcdef";
      json += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) json += kHex[(unit >> shift) & 0xF];
    };
    if (code > 0x10FFFF) return false;
    if (code > 0xFFFF) {
      append_unit(0xD800 + ((code - 0x10000) >> 10));
      append_unit(0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      append_unit(code);
      if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
        json += text_.substr(at_, 6);
        at_ += std::min<std::size_t>(6, text_.size() - at_);
      }
    }
    const Json decoded = Json::parse(json + "\"", nullptr, false);
    if (!decoded.is_string()) return false;
    content += decoded.get<std::string>();
    return true;
  }

  bool sequence(std::string& json, char close, int depth) {
    ++at_;
    json += '[';
    for (bool first = true; !take(close); first = false) {
      if (!first && !take(',')) return false;
      if (!first && take(close)) break;  // a trailing comma
      if (!first) json += ", ";
      if (!value(json, depth + 1)) return false;
    }
    json += ']';
    return true;
  }

  bool dict(std::string& json, int depth) {
    ++at_;
    json += '{';
    for (bool first = true; !take('}'); first = false) {
      if (!first && !take(',')) return false;
      if (!first && take('}')) break;  // a trailing comma
      if (!first) json += ", ";
      if (!key(json) || !take(':')) return false;
      json += ": ";
      if (!value(json, depth + 1)) return false;
    }
    json += '}';
    return true;
  }

  bool key(std::string& json) {
    skip_space();
    if (at_ >= text_.size()) return false;
    if (!escape_markers_) return (text_[at_] == '"' || text_[at_] == '\'') && string(json);
    if (text_.substr(at_).starts_with(kEscape)) return marked_string(json);
    const std::size_t end = text_.find(':', at_);
    if (end == text_.npos || end == at_) return false;
    json += '"' + json_escaped(text_.substr(at_, end - at_)) + '"';
    at_ = end;
    return true;
  }

  bool word(std::string& json) {
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view(",]})").find(text_[at_]) == std::string_view::npos &&
           kJsonSpace.find(text_[at_]) == kJsonSpace.npos)
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "True" || word == "true") return append(json, "true");
    if (word == "False" || word == "false") return append(json, "false");
    if (word == "None" || word == "null") return append(json, "null");
    if (Json::parse(word, nullptr, false).is_number()) return append(json, word);
    // Python also writes +1, 1_000, .5 and 5.
    std::string number(word);
    std::erase(number, '_');
    if (number.starts_with('+')) number.erase(0, 1);
    if (number.starts_with('.')) number.insert(0, 1, '0');
    if (number.ends_with('.')) number += '0';
    if (!Json::parse(number, nullptr, false).is_number()) return false;
    return append(json, number);
  }
  static bool append(std::string& json, std::string_view text) {
    json += text;
    return true;
  }

  std::string_view text_;
  bool escape_markers_;
  std::size_t at_ = 0;
};

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string json = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return json.substr(1, json.size() - 2);
}

std::string json_of_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin != text.npos) {
    const std::string_view trimmed =
        text.substr(begin, text.find_last_not_of(kJsonSpace) + 1 - begin);
    if (Json::accept(trimmed)) return std::string(trimmed);
    if (auto python = json_of_python(trimmed)) return *std::move(python);
  }
  return '"' + json_escaped(text) + '"';
}

std::optional<std::string> json_of_python(std::string_view text) {
  return LiteralReader(text, false).read();
}

std::optional<std::string> json_of_escaped(std::string_view text) {
  return LiteralReader(text, true).read();
}

std::size_t ValueScanner::find(std::string_view text, std::string_view ends) {
  for (; scanned_ < text.size(); ++scanned_) {
    const char c = text[scanned_];
    if (escape_markers_) {
      const std::string_view rest = text.substr(scanned_);
      if (rest.starts_with(kEscape)) {
        quote_ = quote_ == 0 ? '<' : 0;
        scanned_ += kEscape.size() - 1;
        continue;
      }
      if (kEscape.starts_with(rest)) return text.npos;
      if (quote_ != 0) continue;
    } else if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
      }
      continue;
    } else if (c == '"' || c == '\'') {
      quote_ = c;
      continue;
    }
    if (depth_ == 0 && ends.find(c) != ends.npos) return scanned_;
    if (c == '[' || c == '{' || c == '(') ++depth_;
    if (c == ']' || c == '}' || c == ')') --depth_;
  }
  return text.npos;
}

}  // namespace troupe
