#include "runtime/structured_output/structural_tag.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

void check(std::string_view source, const std::vector<std::string_view>& taken,
           const std::vector<std::string_view>& refused) {
  const auto grammar = compile_for_bytes(structural_tag_grammar(source));
  for (const std::string_view text : taken) BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text : refused) BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

std::string tag_refusal(std::string_view source) {
  const auto grammar = structural_tag_grammar(source);
  return grammar.ok() ? "" : grammar.error().message;
}

BOOST_AUTO_TEST_CASE(text_is_free_until_a_trigger_begins_one_of_its_structures) {
  check(R"({"type":"structural_tag","triggers":["<f="],"structures":[
            {"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},
            {"begin":"<f=b>","schema":{"const":"x"},"end":"</f>"}]})",
        {"", "free < text <f", "<f=a>12</f>", "so: <f=b>\"x\"</f> and <f=a>0</f>, \xC3\xA9"},
        {"<f=", "<f=c>1</f>", "<f=a>x</f>", "<f=a>1", "one <f=b>12</f>", "\xC3"});
}

BOOST_AUTO_TEST_CASE(formats_are_put_together) {
  check(R"({"format":{"type":"sequence","elements":[
            {"type":"const_string","value":"A"},
            {"type":"or","elements":[{"type":"regex","pattern":"[0-9]{2}"},
                                     {"type":"grammar","grammar":"root ::= \"x\" root | \"y\""}]},
            {"type":"json_schema","json_schema":{"enum":[true]}}]}})",
        {"A12true", "Aytrue", "Axxytrue"}, {"", "A1true", "Axtrue", "A12", "A12false"});
  check(R"({"format":{"type":"tag","begin":"<t>","content":{"type":"any_text"},
            "end":["</t>","<end>"]}})",
        {"<t></t>", "<t>a < b</t>", "<t>x<end>"}, {"<t>", "<t>x</t></t>", "<t>a<end>b</t>", "x"});
  check(R"({"format":{"type":"any_text","excludes":["bad","worse"]}})", {"", "ba d", "worst"},
        {"bad", "a worse b"});
}

BOOST_AUTO_TEST_CASE(tags_come_after_triggers_or_separators) {
  const std::string tags =
      R"("tags":[{"begin":"<a>","content":{"type":"regex","pattern":"1"},"end":"</a>"},
                 {"type":"tag","begin":"<b>","content":{"type":"const_string","value":""},
                  "end":""}])";
  const std::string triggered = R"({"format":{"type":"triggered_tags","triggers":["<a","<b"],)";
  check(triggered + tags + "}}", {"", "x", "<a>1</a>", "x<b>y<a>1</a>z"}, {"<a", "<a>2</a>"});
  check(triggered + R"("at_least_one":true,)" + tags + "}}", {"<b>", "x<a>1</a> and <b>"},
        {"", "x"});
  check(triggered + R"("at_least_one":true,"stop_after_first":true,)" + tags + "}}",
        {"<b>", "x<a>1</a>"}, {"", "x", "<b><b>", "<b> "});
  check(triggered + R"("stop_after_first":true,)" + tags + "}}", {"", "x", "x<b>"},
        {"<b>x", "<b><b>"});
  const std::string separated = R"({"format":{"type":"tags_with_separator","separator":", ",)";
  check(separated + tags + "}}", {"", "<b>", "<a>1</a>, <b>, <b>"}, {"x", "<b><b>", "<b>, "});
  check(separated + R"("at_least_one":true,"stop_after_first":true,)" + tags + "}}",
        {"<b>", "<a>1</a>"}, {"", "<b>, <b>"});
}

BOOST_AUTO_TEST_CASE(special_tokens_are_taken_where_they_are_named) {
  const std::vector<std::string> special{"<a>", "<ab>", "</a>", "[S]"};
  const auto check_special = [&](std::string_view source, const std::vector<std::string>& taken,
                                 const std::vector<std::string>& refused) {
    const auto grammar = compile_for_bytes(structural_tag_grammar(source, {}, {}, special));
    for (const std::string& text : taken)
      BOOST_TEST(accepts_bytes(*grammar, with_marks(text, special)), text);
    for (const std::string& text : refused)
      BOOST_TEST(!accepts_bytes(*grammar, with_marks(text, special)), text);
    for (const std::string& text : taken)  // as text they are something else
      BOOST_TEST(!accepts_bytes(*grammar, text), text);
  };
  check_special(R"({"format":{"type":"const_string","value":"x<ab>y","special_tokens":true}})",
                {"x<ab>y"}, {"x<a>y", "x"});
  check_special(R"({"format":{"type":"tag","begin":"<a>f","content":{"type":"any_text"},
                    "end":"</a>","special_tokens":true}})",
                {"<a>f</a>", "<a>fx < y</a>"}, {"<a>f", "<a>f[S]</a>"});
  check_special(R"({"format":{"type":"triggered_tags","triggers":["<a>"],"special_tokens":true,
                    "tags":[{"begin":"<a>","content":{"type":"regex","pattern":"1"},
                             "end":"</a>","special_tokens":true}]}})",
                {"so <a>1</a>", "[S]x<a>1</a><ab>y"}, {"<a>", "<a>2</a>", "<a>1<a>"});
  // Without the word they are text, and no part of any text.
  const auto plain = compile_for_bytes(structural_tag_grammar(
      R"({"format":{"type":"sequence","elements":[{"type":"const_string","value":"<a>"},
                                                  {"type":"any_text"}]}})",
      {}, {}, special));
  BOOST_TEST(accepts_bytes(*plain, "<a> and [S]"));
  BOOST_TEST(!accepts_bytes(*plain, "<a> and " + with_marks("[S]", special)));
  BOOST_TEST(!accepts_bytes(*plain, with_marks("<a>", special)));
  BOOST_TEST(tag_refusal(R"({"format":{"type":"any_text","special_tokens":1}})") ==
             "structural_tag: format.special_tokens must be true or false");
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_named) {
  const auto refusal = [](const std::string& text) { return tag_refusal(text); };
  BOOST_TEST(refusal("[]") ==
             "structural_tag: it is no JSON object, or is nested deeper than 64 levels");
  BOOST_TEST(refusal("{}") ==
             "structural_tag: structural_tag.structures must be a list that is not empty");
  BOOST_TEST(refusal(R"({"format":{"type":"qwen_xml_parameter"}})") ==
             "structural_tag: format.type 'qwen_xml_parameter' is not supported");
  BOOST_TEST(refusal(R"({"format":{"type":"const_string","value":"a","more":1}})") ==
             "structural_tag: format.more is not supported");
  BOOST_TEST(refusal(R"({"format":{"type":"sequence","elements":[{"type":"regex"}]}})") ==
             "structural_tag: format.elements[0].pattern must be a string");
  BOOST_TEST(
      refusal(R"({"triggers":["<x"],"structures":[{"begin":"<f>","schema":{},"end":""}]})") ==
      "structural_tag: structural_tag: no trigger begins the tag '<f>'");
  BOOST_TEST(refusal(R"({"format":{"type":"json_schema","json_schema":{"$dynamicRef":""}}})")
                 .find("'$dynamicRef'") != std::string::npos);
  BOOST_TEST(refusal(R"({"format":{"type":"regex","pattern":"("}})").starts_with("regex"));
  std::string deep = R"({"type":"const_string","value":"a"})";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"or","elements":[)" + deep + "]}";
  BOOST_TEST(refusal(R"({"format":)" + deep + "}").find("64 levels") != std::string::npos);
}

}  // namespace
}  // namespace troupe
