#include "runtime/structured_output/ebnf.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace troupe {
namespace {

constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
constexpr int kMaxGroupDepth = 200;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}
bool begins_name(char c) { return is_name_character(c) && !(c >= '0' && c <= '9') && c != '.'; }

class EbnfParser {
 public:
  EbnfParser(std::string_view text, GrammarBuilder& builder) : text_(text), builder_(builder) {}

  /// Returns the rule to start with.
  GrammarRuleId parse() {
    const GrammarRuleId root = rule("root");
    skip_blanks();
    while (!at_end()) {
      const std::string name = parse_name();
      skip_blanks();
      if (!take_if("::=")) fail("'::=' is missing behind '" + name + "'");
      rule(name);
      Rule& defined = rules_.at(name);
      if (defined.line > 0)
        fail("the rule '" + name + "' was defined in line " + std::to_string(defined.line));
      defined.line = line();
      builder_.set_body(defined.id, parse_choice());
      skip_blanks();
    }
    for (const auto& [name, known] : rules_) {
      if (known.line == 0)
        throw GrammarRefused("grammar: the rule '" + name + "' is not defined" +
                             (known.id == root ? ", where it has to start" : ""));
    }
    return root;
  }

 private:
  struct Rule {
    GrammarRuleId id = 0;
    std::size_t line = 0;  ///< of its definition; 0: none yet
  };

  [[nodiscard]] std::size_t line() const {
    return 1 + static_cast<std::size_t>(std::count(
                   text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(position_), '\n'));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw GrammarRefused("grammar: " + what + " in line " + std::to_string(line()));
  }
  [[nodiscard]] bool at_end() const { return position_ >= text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[position_]; }
  char take() {
    if (at_end()) fail("the grammar ends too soon");
    return text_[position_++];
  }
  bool take_if(std::string_view expected) {
    if (!text_.substr(position_).starts_with(expected)) return false;
    position_ += expected.size();
    return true;
  }
  void skip_blanks() {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++position_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++position_;
      } else {
        return;
      }
    }
  }

  std::string parse_name() {
    if (!begins_name(peek())) fail("a rule's name is missing");
    const std::size_t begin = position_;
    while (is_name_character(peek())) ++position_;
    return std::string(text_.substr(begin, position_ - begin));
  }

  GrammarRuleId rule(const std::string& name) {
    const auto [known, is_new] = rules_.try_emplace(name);
    if (is_new) known->second.id = builder_.add_rule();
    return known->second.id;
  }

  /// Is what follows the beginning of the next rule?
  [[nodiscard]] bool is_definition() const {
    std::size_t i = position_;
    while (i < text_.size() && is_name_character(text_[i])) ++i;
    while (i < text_.size() && (text_[i] == ' ' || text_[i] == '\t')) ++i;
    return text_.substr(i).starts_with("::=");
  }

  GrammarNodeId parse_choice() {
    if (++depth_ > kMaxGroupDepth)
      fail("groups nested deeper than " + std::to_string(kMaxGroupDepth) + " levels");
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
      ++position_;
      return builder_.code_points({{0, CodePointSet::kMax}});
    }
    if (c == '(') {
      ++position_;
      const GrammarNodeId node = parse_choice();
      if (!take_if(")")) fail("a group is not closed");
      return node;
    }
    if (begins_name(c)) return builder_.rule(rule(parse_name()));
    fail(std::string("an unexpected character '") + c + "'");
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
        const std::uint32_t min = parse_count(0);
        std::uint32_t max = min;
        skip_blanks();
        if (take_if(",")) max = parse_count(kUnbounded);
        skip_blanks();
        if (!take_if("}")) fail("a repetition is not closed");
        if (max < min) fail("a repetition whose minimum is over its maximum");
        node = builder_.repeat(node, min, max);
      } else {
        return node;
      }
    }
  }

  std::uint32_t parse_count(std::uint32_t if_none) {
    skip_blanks();
    if (peek() < '0' || peek() > '9') return if_none;
    std::uint64_t value = 0;
    while (peek() >= '0' && peek() <= '9')
      value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(take() - '0'),
                                      kUnbounded - 1);
    return static_cast<std::uint32_t>(value);
  }

  GrammarNodeId parse_text() {
    ++position_;
    std::vector<GrammarNodeId> parts;
    while (peek() != '"') {
      if (at_end() || peek() == '\n') fail("a text is not closed");
      const std::uint32_t c = parse_character();
      parts.push_back(builder_.code_points({{c, c}}));
    }
    ++position_;
    return builder_.sequence(parts);
  }

  CodePointSet parse_class() {
    ++position_;
    const bool negated = take_if("^");
    CodePointSet set;
    while (peek() != ']') {
      if (at_end() || peek() == '\n') fail("a class of characters is not closed");
      const std::uint32_t first = parse_character();
      std::uint32_t last = first;
      if (peek() == '-' && position_ + 1 < text_.size() && text_[position_ + 1] != ']') {
        ++position_;
        last = parse_character();
      }
      if (last < first) fail("a range whose end is before its beginning");
      set.add(first, last);
    }
    ++position_;
    return negated ? set.complement() : set;
  }

  /// A character of UTF-8, or an escape.
  std::uint32_t parse_character() {
    const auto lead = static_cast<unsigned char>(take());
    if (lead == '\\') return parse_escape();
    if (lead < 0x80) return lead;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    std::uint32_t c = lead & (0x3Fu >> more);
    for (int i = 0; i < more; ++i) c = c << 6 | (static_cast<unsigned char>(take()) & 0x3Fu);
    return std::min(c, CodePointSet::kMax);
  }

  std::uint32_t parse_escape() {
    const char c = take();
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return parse_hex(2);
      case 'u':
        return parse_hex(4);
      case 'U':
        return parse_hex(8);
      case '0':
        return 0;
      default:
        if (std::string_view("\\\"'[]-^/").find(c) != std::string_view::npos)
          return static_cast<unsigned char>(c);
    }
    fail(std::string("an unknown escape '\\") + c + "'");
  }

  std::uint32_t parse_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = take();
      const char lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<std::uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + static_cast<std::uint32_t>(lower - 'a' + 10);
      } else {
        fail("an escape needs " + std::to_string(digits) + " hexadecimal digits");
      }
    }
    if (value > CodePointSet::kMax) fail("a code point over U+10FFFF");
    return value;
  }

  std::string_view text_;
  GrammarBuilder& builder_;
  std::size_t position_ = 0;
  int depth_ = 0;
  std::map<std::string, Rule> rules_;
};

}  // namespace

GrammarNodeId add_ebnf(GrammarBuilder& builder, std::string_view source) {
  if (source.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("grammar: it has " + std::to_string(source.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
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
