#include "runtime/structured_output/lark.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/structured_output/ebnf.hpp"
#include "runtime/structured_output/grammar_text.hpp"
#include "runtime/structured_output/regex.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kNoLimit = GrammarBuilder::kUnbounded;
constexpr int kMaxLarkDepth = 200;  ///< of groups within each other

/// The terminals of lark's common.lark. Strings and comments end where a lexer would end them.
constexpr std::string_view kCommonTerminals = R"lark(
DIGIT: "0".."9"
HEXDIGIT: "a".."f" | "A".."F" | DIGIT
INT: DIGIT+
SIGNED_INT: ["+" | "-"] INT
DECIMAL: INT "." INT? | "." INT
_EXP: ("e" | "E") SIGNED_INT
FLOAT: INT _EXP | DECIMAL _EXP?
SIGNED_FLOAT: ["+" | "-"] FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ["+" | "-"] NUMBER
ESCAPED_STRING: /"(?:[^"\\\n]|\\[^\n])*"/
LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: UCASE_LETTER | LCASE_LETTER
WORD: LETTER+
CNAME: ("_" | LETTER) ("_" | LETTER | DIGIT)*
WS_INLINE: (" " | /\t/)+
WS: /[ \t\f\r\n]/+
CR: /\r/
LF: /\n/
NEWLINE: (CR? LF)+
SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
C_COMMENT: /\/\*(?:[^*]|\*+[^*\/])*\*+\//
SQL_COMMENT: /--[^\n]*/
)lark";

bool is_lark_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool begins_lark_name(char c) { return is_lark_name_character(c) && !(c >= '0' && c <= '9'); }
bool is_terminal_name(std::string_view name) {
  return std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

/// What the parsers of a grammar and of the common terminals share.
struct LarkRules {
  struct Rule {
    GrammarRuleId id = 0;
    std::size_t line = 0;     ///< of its definition; 0: none yet
    std::size_t used_at = 0;  ///< for the first time
  };

  explicit LarkRules(GrammarBuilder& to) : builder(to) {}

  Rule& rule(const std::string& name) {
    const auto [known, is_new] = by_name.try_emplace(name);
    if (is_new) known->second.id = builder.add_rule();
    return known->second;
  }

  GrammarBuilder& builder;
  std::map<std::string, Rule> by_name;
  std::vector<std::string> imports;  ///< from the common terminals, which may need each other
};

class LarkParser : private GrammarText {
 public:
  LarkParser(std::string_view text, LarkRules& rules)
      : GrammarText(text), builder_(rules.builder), rules_(rules) {
    if (text.find("%ignore") != std::string_view::npos) ignored_ = builder_.add_rule();
  }

  /// Returns the text of the whole grammar.
  GrammarNodeId parse() {
    std::string first;
    std::vector<GrammarNodeId> ignored;
    for (skip_lines(); !at_end(); skip_lines()) {
      if (take_if("%")) {
        parse_statement(ignored);
      } else {
        const std::string name = parse_definition();
        if (first.empty() && !is_terminal_name(name)) first = name;
      }
    }
    if (first.empty()) fail("there is no rule, such as \"start: ...\"");
    if (rules_.by_name.contains("start")) first = "start";
    for (const auto& [name, known] : rules_.by_name)
      if (known.line == 0 && !name.starts_with("common."))
        fail_at(
            known.used_at,
            (is_terminal_name(name) ? "undefined terminal '" : "undefined rule '") + name + "'");
    const GrammarNodeId whole = builder_.rule(rules_.rule(first).id);
    if (!ignored_) return whole;
    builder_.set_body(*ignored_, builder_.repeat(builder_.choice(ignored), 0));
    return builder_.sequence({builder_.rule(*ignored_), whole});
  }

  /// Defines the common terminals that are imported, and those that they need.
  void parse_common() {
    for (skip_lines(); !at_end(); skip_lines()) parse_definition();
  }

 private:
  // ---- Lines ---------------------------------------------------------------------------------

  void skip_comment() {
    while (!at_end() && peek() != '\n') skip();
  }
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') skip();
    if (peek() == '#' || rest().starts_with("//")) skip_comment();
  }
  void skip_lines() {
    for (skip_blanks(); peek() == '\n'; skip_blanks()) skip();
  }
  /// Blanks within a definition, which goes on in a line that begins with '|', and within groups.
  void skip_to_item() {
    skip_blanks();
    if (peek() != '\n') return;
    if (depth_ > 1) return skip_lines();
    const std::string_view text = rest();
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t line = text.find_first_not_of(" \t\r\n", i);
      if (line == std::string_view::npos) return;
      if (text[line] == '|') return skip_lines();
      if (text[line] != '#' && !text.substr(line).starts_with("//")) return;
      i = std::min(text.find('\n', line), text.size());
    }
  }
  void end_line() {
    skip_blanks();
    if (!at_end() && peek() != '\n') fail_unexpected();
  }

  std::string parse_name() {
    if (!begins_lark_name(peek())) fail("expected a name");
    std::string name;
    while (is_lark_name_character(peek())) name.push_back(take());
    return name;
  }

  // ---- Definitions ---------------------------------------------------------------------------

  std::string parse_definition() {
    while (peek() == '?' || peek() == '!') skip();
    const std::size_t begin = position();
    const std::string name = parse_name();
    in_terminal_ = is_terminal_name(name);
    if (peek() == '{') fail("a template ('" + name + "{...}') is not supported");
    if (take_if(".")) {  // its priority
      take_if("-");
      take_count(0);
    }
    skip_blanks();
    if (!take_if(":")) fail("expected ':' after '" + name + "'");
    LarkRules::Rule& defined = rules_.rule(name);
    if (defined.line > 0)
      fail_at(begin, "'" + name + "', which is defined at line " + std::to_string(defined.line) +
                         ", is defined again");
    defined.line = line();
    builder_.set_body(defined.id, parse_choice());
    end_line();
    return name;
  }

  void parse_statement(std::vector<GrammarNodeId>& ignored) {
    const std::string name = parse_name();
    skip_blanks();
    if (name == "import") {
      parse_import();
    } else if (name == "ignore") {
      in_terminal_ = true;
      ignored.push_back(parse_choice());
    } else {
      fail("'%" + name + "' is not supported");
    }
    end_line();
  }

  void parse_import() {
    std::string from = parse_path();
    std::vector<std::string> names;
    skip_blanks();
    if (take_if("(")) {
      do {
        skip_lines();
        names.push_back(parse_name());
        skip_lines();
      } while (take_if(","));
      if (!take_if(")")) fail("expected ')'");
    } else {
      const std::size_t dot = from.rfind('.');
      if (dot == std::string::npos) fail("%import names no terminal");
      names.push_back(from.substr(dot + 1));
      from.resize(dot);
    }
    if (from != "common") fail("%import from '" + from + "' is not supported, only from 'common'");
    skip_blanks();
    std::string as;
    if (take_if("->")) {
      skip_blanks();
      as = parse_name();
    }
    for (const std::string& one : names) {
      if (kCommonTerminals.find("\n" + one + ":") == std::string_view::npos)
        fail("'common' has no terminal '" + one + "'");
      rules_.imports.push_back(one);
      LarkRules::Rule& defined = rules_.rule(as.empty() ? one : as);
      if (defined.line > 0) fail("'" + one + "' is defined again");
      defined.line = line();
      builder_.set_body(defined.id, builder_.rule(rules_.rule("common." + one).id));
    }
  }

  std::string parse_path() {
    std::string path;
    if (take_if(".")) path = ".";
    path += parse_name();
    while (take_if(".")) path += "." + parse_name();
    return path;
  }

  // ---- What is behind the colon --------------------------------------------------------------

  GrammarNodeId parse_choice() {
    if (++depth_ > kMaxLarkDepth)
      fail("groups are nested deeper than " + std::to_string(kMaxLarkDepth) + " levels");
    std::vector<GrammarNodeId> parts;
    do {
      parts.push_back(parse_sequence());
    } while (take_if("|"));
    --depth_;
    return builder_.choice(parts);
  }

  GrammarNodeId parse_sequence() {
    std::vector<GrammarNodeId> parts;
    for (;;) {
      skip_to_item();
      const char c = peek();
      if (at_end() || c == '\n' || c == '|' || c == ')' || c == ']') break;
      if (take_if("->")) {
        skip_blanks();
        parse_name();
        skip_to_item();
        break;
      }
      parts.push_back(parse_repetition(parse_item()));
    }
    return builder_.sequence(parts);
  }

  GrammarNodeId parse_item() {
    const char c = peek();
    if (c == '"' || c == '\'') return terminal(parse_text_or_range());
    if (c == '/') return terminal(parse_regex());
    const std::size_t begin = position();
    if (c == '(' || c == '[') {
      skip();
      const GrammarNodeId node = parse_choice();
      if (!take_if(c == '(' ? ")" : "]")) fail_at(begin, "unterminated group");
      return c == '(' ? node : builder_.optional(node);
    }
    if (!begins_lark_name(c)) fail_unexpected();
    const std::string name = parse_name();
    if (peek() == '{') fail("a template ('" + name + "{...}') is not supported");
    LarkRules::Rule& rule = rules_.rule(name);
    if (rule.used_at == 0) rule.used_at = begin;  // what is used stands behind a definition's name
    if (!is_terminal_name(name) && in_terminal_)
      fail_at(begin, "a terminal may not refer to a rule ('" + name + "')");
    const GrammarNodeId node = builder_.rule(rule.id);
    return is_terminal_name(name) ? terminal(node) : node;
  }

  /// With what is ignored behind it.
  GrammarNodeId terminal(GrammarNodeId node) {
    return in_terminal_ || !ignored_ ? node : builder_.sequence({node, builder_.rule(*ignored_)});
  }

  GrammarNodeId parse_repetition(GrammarNodeId node) {
    for (;;) {
      if (take_if("*")) {
        node = builder_.repeat(node, 0);
      } else if (take_if("+")) {
        node = builder_.repeat(node, 1);
      } else if (take_if("?")) {
        node = builder_.optional(node);
      } else if (take_if("~")) {
        skip_blanks();
        const std::uint32_t min = take_count(kNoLimit);
        if (min == kNoLimit) fail("expected a number after '~'");
        const std::uint32_t max = take_if("..") ? take_count(kNoLimit) : min;
        if (max == kNoLimit) fail("expected a number after '..'");
        if (max < min) fail("minimum of a repetition exceeds its maximum");
        node = builder_.repeat(node, min, max);
      } else {
        return node;
      }
    }
  }

  GrammarNodeId parse_text_or_range() {
    const std::size_t begin = position();
    const std::vector<std::uint32_t> text = parse_text();
    if (take_if("..")) {
      if (peek() != '"' && peek() != '\'') fail("expected a string literal after '..'");
      const std::vector<std::uint32_t> last = parse_text();
      if (text.size() != 1 || last.size() != 1 || last[0] < text[0])
        fail_at(begin, "a character range needs two characters in order");
      return builder_.code_points({{text[0], last[0]}});
    }
    if (text.empty()) fail_at(begin, "empty string literal");
    const bool any_case =
        peek() == 'i' && (rest().size() < 2 || !is_lark_name_character(rest()[1]));
    if (any_case) skip();
    std::vector<GrammarNodeId> parts;
    for (const std::uint32_t c : text) {
      CodePointSet set{{c, c}};
      const std::uint32_t lower = c | 0x20;
      if (any_case && lower >= 'a' && lower <= 'z')
        set = {{lower, lower}, {lower ^ 0x20, lower ^ 0x20}};
      if (any_case && c >= 0x80)
        fail_at(begin, "the flag 'i' is not supported for string literals that are not ASCII");
      parts.push_back(builder_.code_points(set));
    }
    return builder_.sequence(parts);
  }

  std::vector<std::uint32_t> parse_text() {
    const std::size_t begin = position();
    const char quote = take();
    std::vector<std::uint32_t> text;
    while (peek() != quote) {
      if (at_end() || peek() == '\n') fail_at(begin, "unterminated string literal");
      text.push_back(take_character());
    }
    skip();
    return text;
  }

  GrammarNodeId parse_regex() {
    const std::size_t begin = position();
    skip();
    std::string pattern;
    while (peek() != '/') {
      if (at_end() || peek() == '\n') fail_at(begin, "unterminated regular expression");
      const char c = take();
      if (c != '\\') {
        pattern.push_back(c);
        continue;
      }
      if (peek() != '/') pattern.push_back(c);
      pattern.push_back(take());
    }
    skip();
    RegexOptions options;
    for (; peek() >= 'a' && peek() <= 'z'; skip()) {
      if (peek() == 's') {
        options.dot_all = true;
      } else if (peek() != 'u') {
        fail(std::string("the flag '") + peek() + "' of regular expressions is not supported");
      }
    }
    return add_regex(builder_, pattern, options);
  }

  GrammarBuilder& builder_;
  LarkRules& rules_;
  std::optional<GrammarRuleId> ignored_;  ///< any number of what is ignored
  bool in_terminal_ = false;              ///< what is being read belongs to a terminal
  int depth_ = 0;
};

GrammarNodeId add_lark(GrammarBuilder& builder, std::string_view source) {
  check_grammar_size(builder, source);
  LarkRules rules(builder);
  const GrammarNodeId whole = LarkParser(source, rules).parse();
  if (!rules.imports.empty()) {
    LarkRules common(builder);
    LarkParser(kCommonTerminals, common).parse_common();
    for (const std::string& name : rules.imports)
      builder.set_body(rules.rule("common." + name).id, builder.rule(common.rule(name).id));
  }
  return whole;
}

}  // namespace

Result<GrammarBuilder> lark_grammar(std::string_view source, const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId start = builder.add_rule();
    builder.set_body(start, add_lark(builder, source));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

GrammarNodeId add_ebnf_or_lark(GrammarBuilder& builder, std::string_view source) {
  if (source.find("::=") != std::string_view::npos) return add_ebnf(builder, source);
  return add_lark(builder, source);
}

Result<GrammarBuilder> ebnf_or_lark_grammar(std::string_view source, const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId start = builder.add_rule();
    builder.set_body(start, add_ebnf_or_lark(builder, source));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
