#include "runtime/structured_output/lark.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

std::string refusal(std::string_view source) {
  const auto grammar = lark_grammar(source);
  return grammar.ok() ? "" : grammar.error().message;
}

BOOST_AUTO_TEST_CASE(rules_terminals_and_imports_are_read) {
  const auto grammar = compile_for_bytes(lark_grammar(R"g(
// sums, as in lark's own examples
?start: sum
?sum: product
    | sum "+" product   -> add
    | sum "-" product   -> sub   # both are comments

?product: atom
        | product "*" atom  -> mul
?atom: NUMBER           -> number
     | "-" atom         -> neg
     | CNAME            -> var
     | "(" sum ")"

%import common (NUMBER, CNAME)
%import common.WS_INLINE
%ignore WS_INLINE
)g"));
  for (const std::string_view text : {"1", " 12 + 3.5e2*( 4-x_1 )  ", "--a", "1. * .5", "(1+(2))"})
    BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text : {"", "1 +", "(1", "1 2", "a..b", "1\n", "x y"})
    BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

BOOST_AUTO_TEST_CASE(ranges_repetitions_options_and_flags_are_read) {
  const auto grammar = compile_for_bytes(lark_grammar(R"g(
line: "Select"i _SEP item~1..2 [_SEP "limit" _SEP DIGITS] COMMENT? "\x21"~2
item: /[a-z]+;/ | STRING | ("<" | ">")+
_SEP: " "
DIGITS.2: "0".."9"+
STRING: /'(\/|[^'])*'/
COMMENT: /\{.*\}/s
)g"));
  for (const std::string_view text :
       {"select ab;!!", "SELECT <>>'a/b'!!", "sElect '' limit 10{\n}!!", "select a;b;!!"})
    BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text :
       {"select !!", "select a; LIMIT 1!!", "select a;b;c;!!", "select a;!", "select a; limit!!"})
    BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

BOOST_AUTO_TEST_CASE(the_first_rule_is_the_start_if_none_is_called_so) {
  const auto grammar = compile_for_bytes(lark_grammar("A: \"a\"\nlist: A (\",\" A)*"));
  BOOST_TEST(accepts_bytes(*grammar, "a,a"));
  BOOST_TEST(!accepts_bytes(*grammar, "a,"));
}

BOOST_AUTO_TEST_CASE(common_terminals_are_those_of_lark) {
  struct Case {
    std::string_view name;
    std::vector<std::string_view> yes;
    std::vector<std::string_view> no;
  };
  for (const Case& c : std::vector<Case>{
           {"ESCAPED_STRING", {R"("")", R"("a\"b\\")"}, {R"("a)", R"("a"b")", "\"\n\""}},
           {"SIGNED_NUMBER", {"-1", "+2.5", "1e-3", ".5"}, {"--1", "e3", "."}},
           {"SIGNED_INT", {"-12", "3"}, {"1.0", ""}},
           {"C_COMMENT", {"/* a\n*b **/"}, {"/* */ */", "/*"}},
           {"NEWLINE", {"\n", "\r\n\n"}, {"\r", ""}},
           {"WORD", {"abC"}, {"a1", ""}}}) {
    const auto grammar = compile_for_bytes(
        lark_grammar("start: X\n%import common." + std::string(c.name) + " -> X"));
    for (const std::string_view text : c.yes) BOOST_TEST(accepts_bytes(*grammar, text), text);
    for (const std::string_view text : c.no) BOOST_TEST(!accepts_bytes(*grammar, text), text);
  }
}

BOOST_AUTO_TEST_CASE(a_wrong_or_unsupported_grammar_is_refused_with_its_line_and_column) {
  BOOST_TEST(refusal("") ==
             "grammar: there is no rule, such as \"start: ...\" at line 1, column 1");
  BOOST_TEST(refusal("start: \"\u00e9\" a b") ==
             "grammar: undefined rule 'a' at line 1, column 12");
  BOOST_TEST(refusal("start: A") == "grammar: undefined terminal 'A' at line 1, column 8");
  BOOST_TEST(refusal("start: \"a\"\n\u00e9") == "grammar: expected a name at line 2, column 1");
  BOOST_TEST(refusal("start: \u00e9") ==
             "grammar: unexpected character '\u00e9' at line 1, column 8");
  BOOST_TEST(refusal("start: \"a\"\nstart: \"b\"") ==
             "grammar: 'start', which is defined at line 1, is defined again at line 2, column 1");
  BOOST_TEST(refusal("start: (\"a\"") == "grammar: unterminated group at line 1, column 8");
  BOOST_TEST(refusal("start: \"b\"\n  | \"a") ==
             "grammar: unterminated string literal at line 2, column 5");
  BOOST_TEST(refusal("start: /a") ==
             "grammar: unterminated regular expression at line 1, column 8");
  BOOST_TEST(refusal("start: \"a\"~3..2").find("exceeds its maximum") != std::string::npos);
  BOOST_TEST(refusal("start: \"b\"..\"a\"").find("character range") != std::string::npos);
  BOOST_TEST(refusal("start: /a/x").find("the flag 'x'") != std::string::npos);
  BOOST_TEST(refusal("start: /(?=a)/").find("look-ahead") != std::string::npos);
  BOOST_TEST(refusal("start: sep{a, b}").find("a template") != std::string::npos);
  BOOST_TEST(refusal("start: A\n%declare A").find("'%declare' is not") != std::string::npos);
  BOOST_TEST(refusal("start: A\n%import python.A").find("'python'") != std::string::npos);
  BOOST_TEST(refusal("start: A\n%import common.A").find("no terminal 'A'") != std::string::npos);
  BOOST_TEST(refusal("start: A\nA: b\nb: \"c\"").find("may not refer to a rule ('b')") !=
             std::string::npos);
  BOOST_TEST(refusal("start: " + std::string(300, '(')).find("200 levels") != std::string::npos);
}

}  // namespace
}  // namespace troupe
