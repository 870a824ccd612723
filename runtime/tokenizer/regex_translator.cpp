#include "runtime/tokenizer/regex_translator.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/tokenizer/json_fields.hpp"

namespace troupe {
namespace {

struct Newer {
  std::string_view name;
  std::uint32_t first;
  std::uint32_t last;
};
constexpr Newer kNewer[] = {
#include "runtime/tokenizer/newer_properties.inc"
};

constexpr std::string_view kWhitespaceSet = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kHexSet = "0-9A-Fa-f";
/// Outside of brackets, Oniguruma treats these Latin-1 superscripts and fractions as word
/// characters.
constexpr std::string_view kWordDigits = R"(\xB2\xB3\xB9\xBC-\xBE)";

constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"letter", "l"},
    {"casedletter", "lc"},
    {"uppercaseletter", "lu"},
    {"lowercaseletter", "ll"},
    {"titlecaseletter", "lt"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"mark", "m"},
    {"combiningmark", "m"},
    {"nonspacingmark", "mn"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"digit", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"punct", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"},
    {"closepunctuation", "pe"},
    {"initialpunctuation", "pi"},
    {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"},
    {"symbol", "s"},
    {"mathsymbol", "sm"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"spaceseparator", "zs"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"other", "c"},
    {"control", "cc"},
    {"cntrl", "cc"},
    {"format", "cf"},
    {"unassigned", "cn"},
    {"privateuse", "co"},
    {"alpha", "alphabetic"},
    {"upper", "uppercase"},
    {"lower", "lowercase"},
};

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

/// Members of a class, or of its complement.
struct Set {
  std::string members;
  bool is_complement = false;
};

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// Characters that PCRE2 lacks in a class; `name` in lower case.
std::string listed(std::string_view name) {
  std::string members;
  for (const Newer& row : kNewer) {
    if (row.name != name) continue;
    char text[40];
    std::snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", row.first, row.last);
    members += text;
  }
  return members;
}

std::string property(std::string_view name) {
  const std::string script = "\\p{sc:" + std::string(name) + "}";
  // Without "sc:" PCRE2 includes script extensions.
  const bool is_script = name.size() > 2 && compiles(script);
  return (is_script ? script : "\\p{" + std::string(name) + "}") + listed(name);
}

std::string properties(std::initializer_list<std::string_view> names) {
  std::string members;
  for (const std::string_view name : names) members += property(name);
  return members;
}

std::string word_set() { return properties({"alphabetic", "m", "nd", "pc"}); }

/// \p{NAME}. Unassigned characters are the complement of all assigned ones.
Set named_set(std::string_view written) {
  std::string name;
  for (const char c : written) {
    if (c != ' ' && c != '_' && c != '-') name += is_upper(c) ? static_cast<char>(c + 32) : c;
  }
  for (const auto& [long_name, short_name] : kLongNames) {
    if (name == long_name) name = short_name;
  }
  if (name == "c") return {properties({"l", "m", "n", "p", "s", "z"}), true};
  if (name == "cn")
    return {properties({"l", "m", "n", "p", "s", "z", "cc", "cf", "co", "cs"}), true};
  if (name == "word") return {word_set() + std::string(kWordDigits)};
  if (name == "alnum") return {properties({"alphabetic", "nd"})};
  if (name == "space" || name == "whitespace") return {std::string(kWhitespaceSet)};
  if (name == "xdigit") return {std::string(kHexSet)};
  if (name == "blank") return {"\\t" + property("zs")};
  return {property(name)};
}

Set within_brackets(Set set) {
  if (set.members.ends_with(kWordDigits))
    set.members.resize(set.members.size() - kWordDigits.size());
  return set;
}

/// The class named between [: and :].
std::optional<Set> bracket_name(std::string_view name) {
  if (name == "punct") return Set{properties({"p", "s"})};
  if (name == "word") return Set{word_set()};
  for (const char* other :
       {"alpha", "alnum", "upper", "lower", "space", "digit", "xdigit", "cntrl", "blank"}) {
    if (name == other) return named_set(name);
  }
  return std::nullopt;
}

/// A class in brackets; `complements` are sets whose complements are part of it.
struct CharacterClass {
  bool is_negated = false;
  std::string members;
  std::vector<std::string> complements;

  void add(const Set& set, bool negated) {
    if (set.is_complement != negated)
      complements.push_back("[^" + set.members + "]");
    else
      members += set.members;
  }

  [[nodiscard]] std::string text() const {
    if (complements.empty()) return (is_negated ? "[^" : "[") + members + "]";
    std::string others;
    for (const std::string& each : complements) others += (others.empty() ? "" : "|") + each;
    if (is_negated)
      return "(?:(?!" + others + ")" + (members.empty() ? "(?s:.)" : "[^" + members + "]") + ")";
    return "(?:" + others + (members.empty() ? "" : "|[" + members + "]") + ")";
  }
};

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else if (c == '[') {
        ASSIGN_OR_RETURN(const std::string text, character_class());
        out_ += text;
      } else {
        out_.push_back(c);
        ++position_;
      }
    }
    return std::move(out_);
  }

 private:
  Error refuse(const char* what) const {
    return json_fields::unsupported(std::string(what) + " in the pattern \"" +
                                    std::string(pattern_) + "\"");
  }

  struct Escape {
    Set set;
    bool is_negated = false;
  };

  /// The class of the escape at `position_`, which is advanced past it; or nothing.
  Result<std::optional<Escape>> class_escape() {
    const char escaped = pattern_[position_ + 1];
    const auto known = [&](Set set) {
      position_ += 2;
      return std::optional<Escape>(Escape{std::move(set), is_upper(escaped)});
    };
    if (escaped == 's' || escaped == 'S') return known({std::string(kWhitespaceSet)});
    if (escaped == 'h' || escaped == 'H') return known({std::string(kHexSet)});
    if (escaped == 'd' || escaped == 'D') return known({property("nd")});
    if (escaped == 'w' || escaped == 'W') return known(named_set("word"));
    if ((escaped != 'p' && escaped != 'P') || pattern_.substr(position_ + 2, 1) != "{")
      return std::optional<Escape>();
    const std::size_t end = pattern_.find('}', position_);
    if (end == std::string_view::npos) return refuse("an unfinished class name");
    std::string_view name = pattern_.substr(position_ + 3, end - position_ - 3);
    bool is_negated = escaped == 'P';
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    position_ = end + 1;
    return std::optional<Escape>(Escape{named_set(name), is_negated});
  }

  /// An escaped literal.
  void other_escape(std::string& out) {
    const char escaped = pattern_[position_ + 1];
    const std::string_view digits = pattern_.substr(position_ + 2, 4);
    const bool is_hex = digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") ==
                                                  std::string_view::npos;
    if (escaped == 'u' && is_hex) {
      out.append("\\x{").append(digits).append("}");
      position_ += 4;
    } else if (escaped == 'p' || escaped == 'P') {
      out.push_back(escaped);  // a letter that no brace follows
    } else {
      out.append(pattern_, position_, 2);
    }
    position_ += 2;
  }

  Result<void> escape() {
    if (position_ + 1 >= pattern_.size()) return refuse("a trailing backslash");
    const char escaped = pattern_[position_ + 1];
    if (escaped == 'b' || escaped == 'B') {
      const std::string word = "[" + named_set("word").members + "]";
      const auto side = [&](const char* look) { return std::string(look) + word + ")"; };
      const bool inside = escaped == 'B';
      out_ += "(?:" + side("(?<=") + side(inside ? "(?=" : "(?!") + "|" + side("(?<!") +
              side(inside ? "(?!" : "(?=") + ")";
      position_ += 2;
      return {};
    }
    ASSIGN_OR_RETURN(const auto found, class_escape());
    if (!found) {
      other_escape(out_);
      return {};
    }
    CharacterClass alone;
    alone.is_negated = found->set.is_complement != found->is_negated;
    alone.members = found->set.members;
    out_ += alone.text();
    return {};
  }

  /// Reads a class up to its closing bracket. Pre: at '['.
  Result<std::string> character_class() {
    CharacterClass all;
    ++position_;
    if (position_ < pattern_.size() && pattern_[position_] == '^') {
      all.is_negated = true;
      ++position_;
    }
    while (position_ < pattern_.size() && pattern_[position_] != ']') {
      const char c = pattern_[position_];
      if (c == '\\' && position_ + 1 < pattern_.size()) {
        ASSIGN_OR_RETURN(const auto found, class_escape());
        if (found)
          all.add(within_brackets(found->set), found->is_negated);
        else
          other_escape(all.members);
      } else if (pattern_.substr(position_, 2) == "[:") {
        RETURN_IF_ERROR(named_class(all));
      } else if (pattern_.substr(position_, 4) == "&&[^") {
        position_ += 2;
        return intersection_with_complement(all);
      } else if (c == '[' || pattern_.substr(position_, 2) == "&&") {
        return refuse("a nested class");
      } else {
        all.members.push_back(c);
        ++position_;
      }
    }
    if (position_ == pattern_.size()) return refuse("an unterminated class");
    ++position_;
    return all.text();
  }

  /// [:name:] or [:^name:]. Pre: at "[:".
  Result<void> named_class(CharacterClass& all) {
    const std::size_t end = pattern_.find(":]", position_ + 2);
    if (end == std::string_view::npos) return refuse("an unfinished class name");
    std::string_view name = pattern_.substr(position_ + 2, end - position_ - 2);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    if (const auto set = bracket_name(name))
      all.add(*set, is_negated);
    else
      all.members.append(pattern_, position_, end + 2 - position_);
    position_ = end + 2;
    return {};
  }

  /// [A&&[^B]] -> (?:(?=[^B])A), and [^A&&[^B]] -> (?:B|[^A]). Pre: at the inner '['.
  Result<std::string> intersection_with_complement(const CharacterClass& all) {
    PatternTranslator inner(pattern_);
    inner.position_ = position_;
    ASSIGN_OR_RETURN(const std::string outside, inner.character_class());
    position_ = inner.position_;
    if (position_ >= pattern_.size() || pattern_[position_] != ']') return refuse("a nested class");
    ++position_;
    if (all.is_negated) return "(?:(?!" + outside + ")(?s:.)|" + all.text() + ")";
    return "(?:(?=" + outside + ")" + all.text() + ")";
  }

  std::string_view pattern_;
  std::size_t position_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) {
  return PatternTranslator(pattern).run();
}

}  // namespace troupe
