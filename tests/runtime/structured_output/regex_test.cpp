#include "runtime/structured_output/regex.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  return accepts_bytes(*compile_for_bytes(regex_grammar(pattern)), text);
}

std::string refusal(std::string_view pattern) {
  const auto grammar = regex_grammar(pattern);
  return grammar.ok() ? "" : grammar.error().message;
}

BOOST_AUTO_TEST_CASE(a_regex_takes_what_re_fullmatch_takes) {
  struct Case {
    std::string_view pattern;
    std::vector<std::string_view> yes;
    std::vector<std::string_view> no;
  };
  const std::vector<Case> cases{
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"(?:ab)*c", {"c", "abc", "ababc"}, {"ab", "ac"}},
      {"a{2,3}b{2}c{,2}d{1,}", {"aabbd", "aaabbccdd"}, {"abbd", "aaaabbd", "aabbcccd", "aabbc"}},
      {"[a-c^-]+", {"a", "c-^"}, {"d", ""}},
      {"[]x]", {"]", "x"}, {"[", "]x"}},
      {"[^\\d\\s]", {"a", "\xC3\xA9"}, {"1", " ", "\xD9\xA3"}},
      {"\\d+", {"12", "\xD9\xA3"}, {"a"}},
      {"\\w", {"_", "\xC3\xA9", "\xE6\xBC\xA2"}, {"-", "\xC3"}},
      {"\\W", {"-", "\xE2\x82\xAC"}, {"\xC3\xA9"}},
      {".", {"a", "\xF0\x9F\x99\x82", "\r"}, {"\n", "", "\xF0\x9F\x99", "\x80"}},
      {"^a$", {"a"}, {"a\n"}},
      {"(^a|b$)", {"a", "b"}, {"ab"}},
      {"\\Aa\\Z", {"a"}, {"b"}},
      {"x*?y+?", {"xxyy"}, {"xx"}},
      {"(?P<n>a)(?#c)b", {"ab"}, {"a"}},
      {"\\x41\\u00e9\\n\\t\\0", {std::string_view("A\xC3\xA9\n\t\0", 6)}, {"A"}},
      {"a{,}b{x}", {"ab{x}", "aab{x}"}, {"b"}},
      {"(a*)*b", {"b", "aaab"}, {"aaa"}},
      {"(a|aa){0,50}", {"", "aaaaaaa"}, {"ab"}},
      {"(x+x+)+y", {"xxxxxxxxxxxxxxxxxxxxxxxxxxy"}, {"xy", "xxxxxxxxxxxxxxxxxxxxxxxxxxx"}},
      {".*a.{12}", {"bbabbbbbbbbbbbb"}, {"bbabbbbbbbbbbb"}},
  };
  for (const Case& c : cases) {
    for (const std::string_view text : c.yes)
      BOOST_TEST(matches(c.pattern, text), c.pattern << " should take " << text);
    for (const std::string_view text : c.no)
      BOOST_TEST(!matches(c.pattern, text), c.pattern << " should not take " << text);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_regular_is_refused_by_name) {
  BOOST_TEST(refusal("(a)\\1") == "regex: backreference is not supported at position 4");
  BOOST_TEST(refusal("(?=a)b") == "regex: look-ahead is not supported at position 3");
  BOOST_TEST(refusal("(?<!a)b") == "regex: look-behind is not supported at position 4");
  BOOST_TEST(refusal("a\\b") == "regex: word boundary (\\b, \\B) is not supported at position 2");
  BOOST_TEST(refusal("(?i)a").find("flag") != std::string::npos);
  BOOST_TEST(refusal("a^b") == "regex: an anchor (^, $) within the expression is not supported");
  BOOST_TEST(refusal("(a") == "regex: missing ), unterminated group at position 0");
  BOOST_TEST(refusal("a)") == "regex: unbalanced ) at position 1");
  BOOST_TEST(refusal("[a") == "regex: unterminated character class at position 0");
  BOOST_TEST(refusal("*a") == "regex: nothing to repeat at position 0");
  BOOST_TEST(refusal("a**") == "regex: multiple repeat at position 2");
  BOOST_TEST(refusal("a++").find("possessive") != std::string::npos);
  BOOST_TEST(refusal("[b-a]").find("character range is out of order") != std::string::npos);
  BOOST_TEST(refusal("\\").find("unexpected end of the pattern") != std::string::npos);
  BOOST_TEST(refusal("\\q").find("escape") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_hostile_regex_is_refused_by_its_limit) {
  BOOST_TEST(refusal("a{100000}") == "a repetition of 100000 is over the limit of 65536");
  BOOST_TEST(refusal(std::string(300, '(') + std::string(300, ')')).find("200 levels") !=
             std::string::npos);
  BOOST_TEST(refusal(std::string(2 << 20, 'a')).find("the limit is") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_regex_whose_states_explode_goes_on_within_its_limit) {
  GrammarLimits limits;
  limits.max_bytes = 4 << 20;
  const auto grammar = compile_for_bytes(regex_grammar("(.*a.{20}b|.*c.{300}d)+e", limits));
  GrammarMatcher matcher(grammar, {0});
  std::uint32_t random = 1;
  std::weak_ptr<CompiledGrammar> second;
  std::shared_ptr<CompiledGrammar> last;
  int num_successors = 0;
  for (int i = 0; i < 5'000; ++i) {
    const auto latest = CompiledGrammar::latest(grammar);
    if (latest != grammar && latest != last) {
      ++num_successors;
      if (num_successors == 1) second = latest;
      last = latest;
    }
    random = random * 1664525 + 1013904223;
    BOOST_REQUIRE(matcher.accept(static_cast<TokenId>("abcd"[random >> 30])));
  }
  const auto latest = CompiledGrammar::latest(grammar);
  BOOST_TEST(latest != grammar);
  // Those between them have been removed.
  BOOST_TEST(num_successors > 1);
  last.reset();
  BOOST_TEST(second.expired());
  for (const auto& each : {grammar, latest}) BOOST_TEST(each->num_bytes() < (8u << 20));
}

}  // namespace
}  // namespace troupe
