#include "runtime/structured_output/ebnf.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

std::string refusal(std::string_view source) {
  const auto grammar = ebnf_grammar(source);
  return grammar.ok() ? "" : grammar.error().message;
}

BOOST_AUTO_TEST_CASE(rules_texts_classes_and_repetitions_are_read) {
  const auto grammar = compile_for_bytes(ebnf_grammar(R"g(
# arithmetic
root ::= expr "\n"?
expr ::= term
  | expr [+-] term       # a rule may begin with itself
term ::= factor ("*" factor)*
factor ::= number{1} | "(" ws expr ws ")" | "\x41\u00e9" .
number ::= [1-9] [0-9]{0,2} | "0"
ws ::= [ \t]*
)g"));
  for (const std::string_view text : {"1", "12+3*(4-0)\n", "( 1 )", "A\xC3\xA9\xF0\x9F\x99\x82"})
    BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text : {"", "1234", "01", "(1", "1+", "A\xC3\xA9", "1\n\n"})
    BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

BOOST_AUTO_TEST_CASE(classes_may_be_negated_and_repetitions_bounded) {
  const auto grammar =
      compile_for_bytes(ebnf_grammar(R"(root ::= [^\]"\\]{2,} ("x"{2} | "y"{,1}) "]")"));
  for (const std::string_view text : {"ab]", "abxx]", "\xC3\xA9z\n]", "aby]"})
    BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text : {"a]", "a\"]", "ab"})
    BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

BOOST_AUTO_TEST_CASE(a_wrong_grammar_is_refused_with_its_line_and_column) {
  BOOST_TEST(refusal("") == "grammar: there is no rule 'root', the start rule");
  BOOST_TEST(refusal("root ::= a") == "grammar: undefined rule 'a' at line 1, column 10");
  BOOST_TEST(
      refusal("root ::= \"a\"\nroot ::= \"b\"") ==
      "grammar: rule 'root', which is defined at line 1, is defined again at line 2, column 1");
  BOOST_TEST(refusal("root ::= \"a") ==
             "grammar: unterminated string literal at line 1, column 10");
  BOOST_TEST(refusal("root ::=\n (\"a\"") == "grammar: unterminated group at line 2, column 2");
  BOOST_TEST(refusal("root ::= [a") ==
             "grammar: unterminated character class at line 1, column 10");
  BOOST_TEST(refusal("root ::= \"a\"{3,2}").find("exceeds its maximum") != std::string::npos);
  BOOST_TEST(refusal("root ::= \"a\"{99999}").find("the limit of 65536") != std::string::npos);
  BOOST_TEST(refusal("root = \"a\"").find("'::='") != std::string::npos);
  BOOST_TEST(refusal("root ::= \"\\q\"").find("unknown escape sequence") != std::string::npos);
  BOOST_TEST(refusal("root ::= " + std::string(300, '(')).find("200 levels") != std::string::npos);
}

}  // namespace
}  // namespace troupe
