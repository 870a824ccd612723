#include "runtime/structured_output/regex.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/structured_output/unicode_sets.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
constexpr int kMaxGroupDepth = 200;

struct RegexNode {
  enum class Kind : std::uint8_t { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CodePointSet set;
  std::vector<RegexNode> children;
  std::uint32_t min = 0;
  std::uint32_t max = 0;
  bool has_anchor = false;
};

using Kind = RegexNode::Kind;

RegexNode set_node(CodePointSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }

const CodePointSet& all_characters() {
  static const CodePointSet set{{0, CodePointSet::kMax}};
  return set;
}

const CodePointSet& ascii_digits() {
  static const CodePointSet set{{'0', '9'}};
  return set;
}

const CodePointSet& ascii_word_characters() {
  static const CodePointSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}

bool is_ascii_letter(std::uint32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(std::uint32_t c) { return c >= '0' && c <= '9'; }

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const RegexOptions& options)
      : is_python_(options.dialect == RegexDialect::kPython), dot_all_(options.dot_all) {
    // Code points and where they begin, for messages.
    for (std::size_t i = 0; i < pattern.size();) {
      const auto lead = static_cast<unsigned char>(pattern[i]);
      std::size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      size = std::min(size, pattern.size() - i);
      std::uint32_t c = lead < 0x80 ? lead : lead & (0x7Fu >> size);
      for (std::size_t k = 1; k < size; ++k)
        c = c << 6 | (static_cast<unsigned char>(pattern[i + k]) & 0x3Fu);
      text_.push_back(std::min(c, CodePointSet::kMax));
      i += size;
    }
  }

  RegexNode parse() {
    RegexNode node = parse_choice();
    if (!at_end()) fail("unbalanced )");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw GrammarRefused("regex: " + what + " at position " + std::to_string(position_));
  }
  [[nodiscard]] bool at_end() const { return position_ >= text_.size(); }
  [[nodiscard]] std::uint32_t peek(std::size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : kNone;
  }
  std::uint32_t take() {
    if (at_end()) fail("unexpected end of the pattern");
    return text_[position_++];
  }
  bool take_if(std::uint32_t c) {
    if (peek() != c) return false;
    ++position_;
    return true;
  }
  bool take_text(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i)
      if (peek(i) != static_cast<unsigned char>(text[i])) return false;
    position_ += text.size();
    return true;
  }

  RegexNode parse_choice() {
    if (++depth_ > kMaxGroupDepth)
      fail("groups are nested deeper than " + std::to_string(kMaxGroupDepth) + " levels");
    RegexNode node{.kind = Kind::kChoice};
    do {
      node.children.push_back(parse_sequence());
      node.has_anchor = node.has_anchor || node.children.back().has_anchor;
    } while (take_if('|'));
    --depth_;
    if (node.children.size() > 1) return node;
    RegexNode only = std::move(node.children.front());
    return only;
  }

  RegexNode parse_sequence() {
    RegexNode node{.kind = Kind::kSequence};
    while (!at_end() && peek() != '|' && peek() != ')') {
      std::optional<RegexNode> item = parse_item();
      if (!item) continue;
      node.has_anchor = node.has_anchor || item->has_anchor;
      node.children.push_back(std::move(*item));
    }
    return node;
  }

  /// None for a comment.
  std::optional<RegexNode> parse_item() {
    const std::uint32_t c = take();
    std::optional<RegexNode> item;
    switch (c) {
      case '(':
        item = parse_group();
        if (!item) return std::nullopt;
        break;
      case '[':
        item = set_node(parse_class());
        break;
      case '.':
        item = set_node(
            dot_all_     ? CodePointSet{{0, CodePointSet::kMax}}
            : is_python_ ? CodePointSet{{'\n', '\n'}}.complement()
                         : CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement());
        break;
      case '^':
        return anchor(Kind::kBegin);
      case '$':
        return anchor(Kind::kEnd);
      case '*':
      case '+':
      case '?':
        --position_;
        fail("nothing to repeat");
      case '\\':
        if (is_python_ && take_if('A')) return anchor(Kind::kBegin);
        if (is_python_ && take_if('Z')) return anchor(Kind::kEnd);
        if (peek() == 'b' || peek() == 'B') fail("word boundary (\\b, \\B) is not supported");
        if ((peek() >= '1' && peek() <= '9') || (!is_python_ && peek() == 'k'))
          fail("backreference is not supported");
        item = set_node(parse_escape());
        break;
      default:
        if (!is_python_ && (c == ']' || c == '}' || (c == '{' && !looks_like_count())))
          break;  // ECMAScript's web syntax takes them as they are
        if (c == '{' && looks_like_count()) {
          --position_;
          fail("nothing to repeat");
        }
    }
    if (!item) item = set_node({{c, c}});
    return parse_repetition(std::move(*item));
  }

  RegexNode anchor(Kind kind) {
    if (peek() == '*' || peek() == '+' || peek() == '?' || (peek() == '{' && looks_like_count(1)))
      fail("repeated anchor is not supported");
    return {.kind = kind, .has_anchor = true};
  }

  std::optional<RegexNode> parse_group() {
    const std::size_t start = position_ - 1;
    if (take_if('?')) {
      if (take_text("#")) {
        while (take() != ')') {
        }
        return std::nullopt;
      }
      if (take_text("=") || take_text("!")) fail("look-ahead is not supported");
      if (take_text("<=") || take_text("<!")) fail("look-behind is not supported");
      if (take_text(">")) fail("atomic group is not supported");
      if (take_text("(")) fail("conditional group is not supported");
      if (take_text("P=")) fail("backreference is not supported");
      if ((is_python_ && take_text("P<")) || (!is_python_ && take_text("<"))) {
        std::size_t length = 0;
        for (std::uint32_t c = take(); c != '>'; c = take(), ++length) {
          if (!is_ascii_letter(c) && c != '_' && !(length > 0 && is_ascii_digit(c)) && c < 0x80)
            fail("bad character in a group name");
        }
        if (length == 0) fail("missing group name");
      } else if (!take_if(':')) {
        fail("flag or unknown kind of group is not supported");
      }
    }
    RegexNode node = parse_choice();
    if (!take_if(')')) {
      position_ = start;
      fail("missing ), unterminated group");
    }
    return node;
  }

  /// After '{', at peek(from): is it a count?
  [[nodiscard]] bool looks_like_count(std::size_t from = 0) const {
    std::size_t i = from;
    while (is_ascii_digit(peek(i))) ++i;
    const bool has_min = i > from;
    if (peek(i) == '}') return has_min;
    if (peek(i) != ',' || (!has_min && !is_python_)) return false;
    ++i;
    const std::size_t max_begin = i;
    while (is_ascii_digit(peek(i))) ++i;
    return peek(i) == '}' && (has_min || i > max_begin || is_python_);
  }

  std::uint32_t parse_number() {
    std::uint64_t value = 0;
    while (is_ascii_digit(peek())) {
      value = std::min<std::uint64_t>(value * 10 + (take() - '0'), kUnbounded - 1);
    }
    return static_cast<std::uint32_t>(value);
  }

  RegexNode parse_repetition(RegexNode item) {
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
    if (take_if('*')) {
    } else if (take_if('+')) {
      min = 1;
    } else if (take_if('?')) {
      max = 1;
    } else if (peek() == '{' && looks_like_count(1)) {
      ++position_;
      min = parse_number();
      max = min;
      if (take_if(',')) max = peek() == '}' ? kUnbounded : parse_number();
      ++position_;
      if (max < min) fail("minimum of a repetition exceeds its maximum");
    } else {
      return item;
    }
    if (item.has_anchor) fail("repeated anchor is not supported");
    if (peek() == '+' && is_python_) fail("possessive quantifier is not supported");
    take_if('?');  // which match is found first makes no difference
    if (peek() == '*' || peek() == '+' || peek() == '?' || (peek() == '{' && looks_like_count(1)))
      fail("multiple repeat");
    RegexNode node{.kind = Kind::kRepeat, .min = min, .max = max};
    node.children.push_back(std::move(item));
    return node;
  }

  std::uint32_t parse_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const std::uint32_t c = take();
      const std::uint32_t lower = c | 0x20;
      if (is_ascii_digit(c)) {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        fail("expected " + std::to_string(digits) + " hexadecimal digits in an escape sequence");
      }
    }
    if (value > CodePointSet::kMax) fail("code point exceeds U+10FFFF");
    return value;
  }

  /// A class of characters after '\'; none if it is another escape.
  std::optional<CodePointSet> parse_class_escape() {
    const CodePointSet* set = nullptr;
    const std::uint32_t c = peek();
    const std::uint32_t lower = c | 0x20;
    if (lower == 'd') set = is_python_ ? &python_digits() : &ascii_digits();
    if (lower == 'w') set = is_python_ ? &python_word_characters() : &ascii_word_characters();
    if (lower == 's') set = is_python_ ? &python_spaces() : &ecma_spaces();
    if (set != nullptr) {
      ++position_;
      return c == lower ? *set : set->complement();
    }
    if (lower == 'p' && !is_python_) {
      ++position_;
      if (!take_if('{')) fail("\\p needs a property in braces");
      std::string name;
      for (std::uint32_t n = take(); n != '}'; n = take()) name.push_back(static_cast<char>(n));
      for (const std::string_view prefix : {"General_Category=", "gc="})
        if (name.starts_with(prefix)) name.erase(0, prefix.size());
      auto category = general_category(name);
      if (!category) fail("the property \\p{" + name + "} is not supported");
      return c == 'p' ? *category : category->complement();
    }
    return std::nullopt;
  }

  CodePointSet parse_escape(bool in_class = false) {
    if (auto set = parse_class_escape()) return *set;
    const std::uint32_t c = parse_character_escape(in_class);
    return {{c, c}};
  }

  /// After '\'.
  std::uint32_t parse_character_escape(bool in_class) {
    const std::uint32_t c = take();
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'x':
        return parse_hex(2);
      case 'u':
        if (!is_python_ && take_if('{')) {
          std::uint32_t value = 0;
          while (!take_if('}')) value = std::min(value * 16 + parse_hex(1), CodePointSet::kMax + 1);
          if (value > CodePointSet::kMax) fail("code point exceeds U+10FFFF");
          return value;
        }
        return parse_utf16();
      case 'U':
        if (is_python_) return parse_hex(8);
        break;
      case 'a':
        if (is_python_) return '\a';
        break;
      case 'b':
        if (in_class) return '\b';
        break;
      case 'c':
        if (!is_python_ && is_ascii_letter(peek())) return take() % 32;
        break;
      case '0':
        return parse_octal(2, 0);
      default:
        if (is_python_ && in_class && is_ascii_digit(c)) {
          if (c > '7') fail("bad escape sequence");
          return parse_octal(2, c - '0');
        }
        if (!is_ascii_letter(c) && !is_ascii_digit(c)) return c;
    }
    --position_;
    fail("bad or unsupported escape sequence");
  }

  std::uint32_t parse_octal(int max_more, std::uint32_t value) {
    for (int i = 0; i < max_more && peek() >= '0' && peek() <= '7'; ++i)
      value = value * 8 + (take() - '0');
    return value;
  }

  /// After "\u": four digits, and in ECMAScript a second escape that makes a pair with the first.
  std::uint32_t parse_utf16() {
    const std::uint32_t first = parse_hex(4);
    if (is_python_ || first < 0xD800 || first > 0xDBFF) return first;
    const std::size_t before = position_;
    if (take_text("\\u")) {
      const std::uint32_t second = parse_hex(4);
      if (second >= 0xDC00 && second <= 0xDFFF)
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
      position_ = before;
    }
    return first;
  }

  /// After '['.
  CodePointSet parse_class() {
    const std::size_t start = position_ - 1;
    CodePointSet set;
    const bool negated = take_if('^');
    // Python takes a first ] as itself.
    for (bool first = true; !(peek() == ']' && !(first && is_python_)); first = false) {
      if (at_end()) {
        position_ = start;
        fail("unterminated character class");
      }
      std::uint32_t low = take();
      if (low == '\\') {
        if (const auto inner = parse_class_escape()) {
          set.add(*inner);
          continue;
        }
        low = parse_character_escape(true);
      }
      if (peek() != '-' || peek(1) == ']' || peek(1) == kNone) {
        set.add(low, low);
        continue;
      }
      ++position_;
      std::uint32_t high = take();
      if (high == '\\') {
        if (parse_class_escape()) fail("bad character range, it ends with a class");
        high = parse_character_escape(true);
      }
      if (high < low) fail("character range is out of order");
      set.add(low, high);
    }
    ++position_;
    return negated ? set.complement() : set;
  }

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> text_;
  std::size_t position_ = 0;
  int depth_ = 0;
  bool is_python_;
  const bool dot_all_;
};

/// What is at one side of a part of an expression.
enum class RegexEdge : std::uint8_t {
  kInner,  ///< more of the expression
  kText,   ///< the text's end
  kOpen,   ///< any characters of the text, unless there is an anchor
};

class RegexConversion {
 public:
  RegexConversion(GrammarBuilder& builder, const RegexOptions& options)
      : builder_(builder), options_(options) {}

  GrammarNodeId convert(const RegexNode& node, RegexEdge left, RegexEdge right) {
    if (node.kind == Kind::kChoice) {
      std::vector<GrammarNodeId> parts;
      for (const RegexNode& child : node.children) parts.push_back(convert(child, left, right));
      return builder_.choice(parts);
    }
    if (node.kind == Kind::kBegin || node.kind == Kind::kEnd)
      return convert_sequence(std::span(&node, 1), left, right);
    if (node.kind == Kind::kSequence) return convert_sequence(node.children, left, right);
    return between(left, convert_inner(node), right);
  }

 private:
  GrammarNodeId between(RegexEdge left, GrammarNodeId node, RegexEdge right) {
    return builder_.sequence({left == RegexEdge::kOpen ? anything() : builder_.empty(), node,
                              right == RegexEdge::kOpen ? anything() : builder_.empty()});
  }

  GrammarNodeId convert_sequence(std::span<const RegexNode> items, RegexEdge left,
                                 RegexEdge right) {
    while (!items.empty() && items.front().kind == Kind::kBegin && left != RegexEdge::kInner) {
      left = RegexEdge::kText;
      items = items.subspan(1);
    }
    while (!items.empty() && items.back().kind == Kind::kEnd && right != RegexEdge::kInner) {
      right = RegexEdge::kText;
      items = items.first(items.size() - 1);
    }
    if (items.empty()) return between(left, builder_.empty(), right);
    if (items.size() == 1) {
      const RegexNode& item = items.front();
      if (item.kind == Kind::kBegin || item.kind == Kind::kEnd) refuse_anchor();
      return convert(item, left, right);
    }
    std::vector<GrammarNodeId> parts;
    for (std::size_t i = 0; i < items.size(); ++i)
      parts.push_back(convert(items[i], i == 0 ? left : RegexEdge::kInner,
                              i + 1 == items.size() ? right : RegexEdge::kInner));
    return builder_.sequence(parts);
  }

  [[noreturn]] static void refuse_anchor() {
    throw GrammarRefused("regex: an anchor (^, $) within the expression is not supported");
  }

  GrammarNodeId convert_inner(const RegexNode& node) {
    if (node.kind == Kind::kSet) return characters(node.set);
    return builder_.repeat(convert(node.children.front(), RegexEdge::kInner, RegexEdge::kInner),
                           node.min, node.max);
  }

  GrammarNodeId characters(const CodePointSet& set) {
    const auto [known, is_new] = known_.try_emplace(set.ranges(), builder_.nothing());
    if (is_new)
      known->second = options_.characters ? options_.characters(set) : builder_.code_points(set);
    return known->second;
  }

  GrammarNodeId anything() { return builder_.repeat(characters(all_characters()), 0); }

  GrammarBuilder& builder_;
  const RegexOptions& options_;
  std::map<std::vector<CodePointSet::Range>, GrammarNodeId> known_;
};

}  // namespace

GrammarNodeId add_regex(GrammarBuilder& builder, std::string_view pattern,
                        const RegexOptions& options) {
  if (pattern.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("regex: the pattern has " + std::to_string(pattern.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
  const RegexNode root = RegexParser(pattern, options).parse();
  const RegexEdge edge = options.search ? RegexEdge::kOpen : RegexEdge::kText;
  return RegexConversion(builder, options).convert(root, edge, edge);
}

Result<GrammarBuilder> regex_grammar(std::string_view pattern, const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId root = builder.add_rule();
    builder.set_body(root, add_regex(builder, pattern, {}));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
