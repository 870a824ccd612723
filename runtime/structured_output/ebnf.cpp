#include "runtime/structured_output/ebnf.hpp"

#include <map>
#include <string>
#include <vector>

#include "runtime/structured_output/grammar_text.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
constexpr int kMaxGroupDepth = 200;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}
bool begins_name(char c) { return is_name_character(c) && !(c >= '0' && c <= '9') && c != '.'; }

class EbnfParser : private GrammarText {
 public:
  EbnfParser(std::string_view text, GrammarBuilder& builder)
      : GrammarText(text), builder_(builder) {}

  /// Returns the rule to start with.
  GrammarRuleId parse() {
    const GrammarRuleId root = rule("root");
    skip_blanks();
    while (!at_end()) {
      const std::size_t begin = position();
      const std::string name = parse_name();
      skip_blanks();
      if (!take_if("::=")) fail("expected '::=' after '" + name + "'");
      rule(name);
      Rule& defined = rules_.at(name);
      if (defined.line > 0)
        fail_at(begin, "rule '" + name + "', which is defined at line " +
                           std::to_string(defined.line) + ", is defined again");
      defined.line = line();
      builder_.set_body(defined.id, parse_choice());
      skip_blanks();
    }
    for (const auto& [name, known] : rules_) {
      if (known.line > 0) continue;
      if (known.id == root)
        throw GrammarRefused("grammar: there is no rule 'root', the start rule");
      fail_at(known.used_at, "undefined rule '" + name + "'");
    }
    return root;
  }

 private:
  struct Rule {
    GrammarRuleId id = 0;
    std::size_t line = 0;     ///< of its definition; 0: none yet
    std::size_t used_at = 0;  ///< for the first time
  };

  void skip_blanks() {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') skip();
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        skip();
      } else {
        return;
      }
    }
  }

  std::string parse_name() {
    if (!begins_name(peek())) fail("expected a rule name");
    std::string name;
    while (is_name_character(peek())) name.push_back(take());
    return name;
  }

  GrammarRuleId rule(const std::string& name) {
    const auto [known, is_new] = rules_.try_emplace(name);
    if (is_new) known->second.id = builder_.add_rule();
    return known->second.id;
  }

  /// Is what follows the beginning of the next rule?
  [[nodiscard]] bool is_definition() const {
    const std::string_view text = rest();
    std::size_t i = 0;
    while (i < text.size() && is_name_character(text[i])) ++i;
    while (i < text.size() && (text[i] == ' ' || text[i] == '\t')) ++i;
    return text.substr(i).starts_with("::=");
  }

  GrammarNodeId parse_choice() {
    if (++depth_ > kMaxGroupDepth)
      fail("groups are nested deeper than " + std::to_string(kMaxGroupDepth) + " levels");
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
      skip_blanks();
      const char c = peek();
      if (at_end() || c == '|' || c == ')') break;
      if (begins_name(c) && is_definition()) break;
      parts.push_back(parse_repetition(parse_item()));
    }
    return builder_.sequence(parts);
  }

  GrammarNodeId parse_item() {
    const char c = peek();
    if (c == '"') return parse_text();
    if (c == '[') return builder_.code_points(parse_class());
    if (c == '.') {
      skip();
      return builder_.code_points({{0, CodePointSet::kMax}});
    }
    if (c == '(') {
      const std::size_t begin = position();
      skip();
      const GrammarNodeId node = parse_choice();
      if (!take_if(")")) fail_at(begin, "unterminated group");
      return node;
    }
    if (begins_name(c)) return parse_reference();
    fail_unexpected();
  }

  GrammarNodeId parse_reference() {
    const std::size_t begin = position();
    const std::string name = parse_name();
    const GrammarRuleId id = rule(name);
    Rule& used = rules_.at(name);
    if (used.used_at == 0) used.used_at = begin;  // a definition comes first
    return builder_.rule(id);
  }

  GrammarNodeId parse_repetition(GrammarNodeId node) {
    for (;;) {
      if (take_if("*")) {
        node = builder_.repeat(node, 0);
      } else if (take_if("+")) {
        node = builder_.repeat(node, 1);
      } else if (take_if("?")) {
        node = builder_.optional(node);
      } else if (take_if("{")) {
        skip_blanks();
        const std::uint32_t min = take_count(0);
        std::uint32_t max = min;
        skip_blanks();
        if (take_if(",")) {
          skip_blanks();
          max = take_count(kUnbounded);
        }
        skip_blanks();
        if (!take_if("}")) fail("expected '}' after a repetition's bounds");
        if (max < min) fail("minimum of a repetition exceeds its maximum");
        node = builder_.repeat(node, min, max);
      } else {
        return node;
      }
    }
  }

  GrammarNodeId parse_text() {
    const std::size_t begin = position();
    skip();
    std::vector<GrammarNodeId> parts;
    while (peek() != '"') {
      if (at_end() || peek() == '\n') fail_at(begin, "unterminated string literal");
      const std::uint32_t c = take_character();
      parts.push_back(builder_.code_points({{c, c}}));
    }
    skip();
    return builder_.sequence(parts);
  }

  CodePointSet parse_class() {
    const std::size_t begin = position();
    skip();
    const bool negated = take_if("^");
    CodePointSet set;
    while (peek() != ']') {
      if (at_end() || peek() == '\n') fail_at(begin, "unterminated character class");
      const std::uint32_t first = take_character();
      std::uint32_t last = first;
      if (peek() == '-' && rest().size() > 1 && rest()[1] != ']') {
        skip();
        last = take_character();
      }
      if (last < first) fail("character range is out of order");
      set.add(first, last);
    }
    skip();
    return negated ? set.complement() : set;
  }

  GrammarBuilder& builder_;
  int depth_ = 0;
  std::map<std::string, Rule> rules_;
};

}  // namespace

GrammarNodeId add_ebnf(GrammarBuilder& builder, std::string_view source) {
  check_grammar_size(builder, source);
  return builder.rule(EbnfParser(source, builder).parse());
}

Result<GrammarBuilder> ebnf_grammar(std::string_view source, const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    add_ebnf(builder, source);  // its rule is the first
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
