#include "runtime/tool_parsers/call_pattern.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"
#include "runtime/tool_parsers/argument_text.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
/// A call whose arguments come before its name is held until both are there.
constexpr std::size_t kMaxHeaderBytes = 1 << 20;

constexpr std::array<std::pair<std::string_view, PatternPartKind>, 10> kPlaceholders = {{
    {"{name}", PatternPartKind::kName},
    {"{id}", PatternPartKind::kId},
    {"{key}", PatternPartKind::kKey},
    {"{value}", PatternPartKind::kValue},
    {"{json}", PatternPartKind::kJson},
    {"{object}", PatternPartKind::kObject},
    {"{objects}", PatternPartKind::kObjects},
    {"{parameters}", PatternPartKind::kParameters},
    {"{python}", PatternPartKind::kPython},
    {"{escaped}", PatternPartKind::kEscaped},
}};

bool is_space(char c) { return kJsonSpace.find(c) != kJsonSpace.npos; }

/// The end of the JSON string that begins at text[at]: `at` moves behind it.
Match read_string(std::string_view text, std::size_t& at, std::string& value) {
  if (at >= text.size()) return Match::kMore;
  if (text[at] != '"') return Match::kNo;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return Match::kMore;
  const auto json = nlohmann::json::parse(text.substr(at, end + 1 - at), nullptr, false);
  if (!json.is_string()) return Match::kNo;
  value = json.get<std::string>();
  at = end + 1;
  return Match::kYes;
}

/// Any JSON value, roughly: brackets and strings are balanced.
Match skip_value(std::string_view text, std::size_t& at) {
  JsonNesting nesting;
  for (std::size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (nesting.depth() == 0 && !nesting.is_in_string() && (c == '}' || c == ']' || c == ',')) {
      at = i;
      return Match::kYes;
    }
    nesting.add(c);
  }
  return Match::kMore;
}

/// A name, or another short text before `next`, which is the following literal (its first character
/// ends the text). Ends at whitespace and at brackets.
Match read_word(std::string_view text, std::size_t& at, std::string_view next, std::string& word) {
  constexpr std::string_view kEnds = "<>{}[]()\"' \t\r\n";
  const std::size_t begin = at;
  while (at < text.size() && kEnds.find(text[at]) == kEnds.npos &&
         (next.empty() || text[at] != next.front())) {
    ++at;
  }
  if (at == text.size() && at - begin <= kMaxNameBytes) return Match::kMore;
  if (at == begin || at - begin > kMaxNameBytes) return Match::kNo;
  word = text.substr(begin, at - begin);
  return Match::kYes;
}

Match expect(std::string_view text, std::size_t& at, char c) {
  at = skip_space(text, at);
  if (at >= text.size()) return Match::kMore;
  if (text[at] != c) return Match::kNo;
  ++at;
  return Match::kYes;
}

#define TROUPE_RETURN_UNLESS_YES(expression) \
  if (const Match match_ = (expression); match_ != Match::kYes) return match_

/// {"name": "f", "arguments": ...}; `at` moves to the arguments if the name comes first, otherwise
/// behind the object.
Match match_object(std::string_view text, std::size_t& at, CallHeader& header) {
  if (text.size() - at > kMaxHeaderBytes) return Match::kNo;
  TROUPE_RETURN_UNLESS_YES(expect(text, at, '{'));
  while (true) {
    std::string key;
    at = skip_space(text, at);
    TROUPE_RETURN_UNLESS_YES(read_string(text, at, key));
    TROUPE_RETURN_UNLESS_YES(expect(text, at, ':'));
    at = skip_space(text, at);
    if (key == "name") {
      TROUPE_RETURN_UNLESS_YES(read_string(text, at, header.name));
      if (header.name.empty() || header.name.size() > kMaxNameBytes) return Match::kNo;
    } else if (key == "arguments" || key == "parameters") {
      if (!header.name.empty()) return Match::kYes;
      const std::size_t begin = at;
      TROUPE_RETURN_UNLESS_YES(skip_value(text, at));
      header.arguments = text.substr(begin, at - begin);
    } else {
      TROUPE_RETURN_UNLESS_YES(skip_value(text, at));
    }
    at = skip_space(text, at);
    if (at >= text.size()) return Match::kMore;
    const char next = text[at++];
    if (next == '}') break;
    if (next != ',') return Match::kNo;
  }
  if (header.name.empty()) return Match::kNo;
  header.is_complete = true;
  const std::size_t last = header.arguments.find_last_not_of(kJsonSpace);
  header.arguments.resize(last == std::string::npos ? 0 : last + 1);
  if (header.arguments.empty()) header.arguments = "{}";
  return Match::kYes;
}

/// f(
Match match_python_call(std::string_view text, std::size_t& at, CallHeader& header) {
  at = skip_space(text, at);
  TROUPE_RETURN_UNLESS_YES(read_word(text, at, "(", header.name));
  return expect(text, at, '(');
}

Match match_arguments(PatternPartKind kind, std::string_view text, std::size_t& at,
                      CallHeader& header) {
  switch (kind) {
    case PatternPartKind::kJson:
    case PatternPartKind::kEscaped:
      at = skip_space(text, at);
      if (at >= text.size()) return Match::kMore;
      return text[at] == '{' ? Match::kYes : Match::kNo;
    case PatternPartKind::kObjects:
      TROUPE_RETURN_UNLESS_YES(expect(text, at, '['));
      return match_object(text, at, header);
    case PatternPartKind::kObject:
      return match_object(text, at, header);
    case PatternPartKind::kPython:
      return match_python_call(text, at, header);
    default:
      return Match::kYes;
  }
}

std::string_view literal_after(const CallPattern& pattern, std::size_t part) {
  return part + 1 < pattern.size() ? pattern[part + 1].literal : std::string_view();
}

}  // namespace

CallPattern compile_pattern(std::string_view pattern) {
  CallPattern parts;
  while (!pattern.empty()) {
    const auto* const placeholder = std::ranges::find_if(
        kPlaceholders, [&](const auto& known) { return pattern.starts_with(known.first); });
    if (placeholder != kPlaceholders.end()) {
      parts.push_back({.kind = placeholder->second, .literal = {}});
      pattern.remove_prefix(placeholder->first.size());
      continue;
    }
    const std::size_t end = std::min(pattern.find('{', 1), pattern.size());
    parts.push_back({.kind = PatternPartKind::kLiteral, .literal = pattern.substr(0, end)});
    pattern.remove_prefix(end);
  }
  return parts;
}

std::string_view trigger_of(const CallPattern& pattern) {
  const std::string_view literal = pattern.front().literal;
  const std::string_view trigger = literal.substr(0, literal.find_first_of(kJsonSpace));
  // A single bracket is too common in text.
  return trigger == "[" ? std::string_view() : trigger;
}

std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

Match match_literal(std::string_view literal, std::string_view text, std::size_t& at) {
  std::size_t position = at;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (is_space(literal[i])) {
      position = skip_space(text, position);
      continue;
    }
    if (position >= text.size()) return Match::kMore;
    if (text[position] != literal[i]) return Match::kNo;
    ++position;
  }
  at = position;
  return Match::kYes;
}

Match match_header(const CallPattern& pattern, std::string_view text, std::size_t at,
                   const ToolDeclarations* known, CallHeader& header) {
  header = {};
  for (std::size_t part = 0; part < pattern.size(); ++part) {
    const PatternPartKind kind = pattern[part].kind;
    if (kind == PatternPartKind::kLiteral) {
      TROUPE_RETURN_UNLESS_YES(match_literal(pattern[part].literal, text, at));
    } else if (kind == PatternPartKind::kName || kind == PatternPartKind::kId) {
      at = skip_space(text, at);
      TROUPE_RETURN_UNLESS_YES(
          read_word(text, at, literal_after(pattern, part),
                    kind == PatternPartKind::kName ? header.name : header.model_id));
    } else {
      TROUPE_RETURN_UNLESS_YES(match_arguments(kind, text, at, header));
      if (known != nullptr && !known->has(header.name)) return Match::kNo;
      header.part = part;
      header.end = at;
      return Match::kYes;
    }
  }
  CHECK(false, "a pattern without arguments");
  return Match::kNo;
}

Match match_next(PatternPartKind kind, std::string_view text, std::size_t at, CallHeader& header) {
  const std::size_t part = header.part;
  header = {};
  header.part = part;
  TROUPE_RETURN_UNLESS_YES(kind == PatternPartKind::kPython ? match_python_call(text, at, header)
                                                            : match_object(text, at, header));
  header.end = at;
  return Match::kYes;
}

Match match_parameter(const CallPattern& pattern, std::string_view text, std::size_t at,
                      ParameterHeader& header) {
  header = {};
  for (std::size_t part = 0; part < pattern.size(); ++part) {
    switch (pattern[part].kind) {
      case PatternPartKind::kLiteral: {
        // Whitespace before a value is the value's.
        std::string_view literal = pattern[part].literal;
        if (part + 1 < pattern.size() && pattern[part + 1].kind == PatternPartKind::kValue)
          literal = literal.substr(0, literal.find_last_not_of(kJsonSpace) + 1);
        TROUPE_RETURN_UNLESS_YES(match_literal(literal, text, at));
        break;
      }
      case PatternPartKind::kKey:
      case PatternPartKind::kId:
        TROUPE_RETURN_UNLESS_YES(
            read_word(text, at, literal_after(pattern, part),
                      pattern[part].kind == PatternPartKind::kKey ? header.key : header.model_id));
        break;
      default:
        header.end = at;
        return Match::kYes;
    }
  }
  CHECK(false, "a parameter without a value");
  return Match::kNo;
}

#undef TROUPE_RETURN_UNLESS_YES

}  // namespace troupe
