#pragma once
// The parts of JSON texts as grammars: white space, strings, numbers.

#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/structured_output/grammar_builder.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/structured_output/regex.hpp"

namespace troupe {

/// A number in decimal: digits of the whole part without leading zeros ("0" at least), digits of
/// the fraction without trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
  auto operator<=>(const Decimal&) const = default;  ///< of what is written; not by value
  /// From JSON's spelling. Throws GrammarRefused if it has too many digits.
  static Decimal parse(std::string_view json);
};
[[nodiscard]] bool less(const Decimal& a, const Decimal& b);

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool exclusive = false;
    auto operator<=>(const Bound&) const = default;
  };
  bool integer = false;
  std::optional<Bound> min;
  std::optional<Bound> max;
  std::optional<Decimal> multiple_of;
  std::vector<Decimal> not_multiples;  ///< a multiple of none of these
  auto operator<=>(const NumberBounds&) const = default;
};

/// How strings are written.
enum class JsonStrings : std::uint8_t {
  kQuoted,
  kWithoutLess,  ///< quoted, and each '<' as \u003c
  kPlain,        ///< their text as it is, for what is no JSON
};

/// Makes nodes in a builder, which must outlive this; each throws GrammarRefused.
class JsonGrammar {
 public:
  JsonGrammar(GrammarBuilder& builder, const JsonGrammarOptions& options,
              JsonStrings strings = JsonStrings::kQuoted);

  [[nodiscard]] JsonStrings strings() const noexcept { return strings_; }

  [[nodiscard]] GrammarNodeId whitespace() const noexcept { return whitespace_; }
  /// Between two items: white space, the character (',' or ':'), white space.
  GrammarNodeId separator(char c);
  /// A string with any escapes, of min to max characters.
  GrammarNodeId string(std::uint32_t min = 0, std::uint32_t max = GrammarBuilder::kUnbounded);
  /// This string, spelled as `spelled_characters` does.
  GrammarNodeId string_literal(std::string_view text);
  /// `content` in quotes, if strings have them.
  GrammarNodeId quoted(GrammarNodeId content);
  /// A character of the set as a string has it: escaped only where it must be. That way each text
  /// has one spelling, and texts can be compared.
  GrammarNodeId spelled_characters(const CodePointSet& set);
  /// Any character, spelled that way.
  [[nodiscard]] GrammarNodeId spelled_character() const noexcept { return spelled_character_; }
  /// The content of strings that match somewhere, or as a whole.
  GrammarNodeId matching(std::string_view pattern, bool search);
  /// The content of strings of that format; none if it is not known.
  std::optional<GrammarNodeId> format(std::string_view name);
  GrammarNodeId number(const NumberBounds& bounds);
  /// Any JSON value.
  GrammarNodeId any_value();
  GrammarNodeId any_object();

 private:
  GrammarNodeId make_number(const NumberBounds& bounds);
  GrammarNodeId magnitude_from(const Decimal& bound, bool exclusive);
  GrammarNodeId magnitude_to(const Decimal& bound, bool exclusive);
  GrammarNodeId bounded_magnitude(const NumberBounds& bounds, bool negative);
  GrammarNodeId multiples(const Decimal& divisor, bool integer);

  GrammarBuilder& builder_;
  JsonStrings strings_;
  CodePointSet unescaped_;  ///< characters that stand for themselves
  GrammarNodeId whitespace_ = 0;
  GrammarNodeId comma_ = 0;  ///< with white space; 0: not made yet
  GrammarNodeId colon_ = 0;
  GrammarNodeId any_character_ = 0;  ///< of a string, with its escapes
  GrammarNodeId spelled_character_ = 0;
  GrammarNodeId digit_ = 0;
  GrammarNodeId digits_ = 0;  ///< any number of them
  GrammarNodeId whole_ = 0;   ///< 0 or digits that do not begin with 0
  std::map<std::pair<bool, std::string>, GrammarNodeId> patterns_;  ///< by `search` and pattern
  std::map<std::string, GrammarNodeId, std::less<>> formats_;
  std::map<NumberBounds, GrammarNodeId> numbers_;
  std::optional<GrammarRuleId> any_value_;
  std::optional<GrammarRuleId> any_object_;
};

}  // namespace troupe
