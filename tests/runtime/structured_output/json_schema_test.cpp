#include "runtime/structured_output/json_schema.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

struct Case {
  std::string_view schema;
  std::vector<std::string_view> yes;
  std::vector<std::string_view> no;
};

void check(const std::vector<Case>& cases, const JsonGrammarOptions& options = {}) {
  for (const Case& c : cases) {
    BOOST_TEST_INFO_SCOPE(c.schema);
    const auto grammar = compile_for_bytes(json_schema_grammar(c.schema, options));
    for (const std::string_view text : c.yes)
      BOOST_TEST(accepts_bytes(*grammar, text), "should take " << text);
    for (const std::string_view text : c.no)
      BOOST_TEST(!accepts_bytes(*grammar, text), "should not take " << text);
  }
}

std::string refusal(std::string_view schema, const GrammarLimits& limits = {}) {
  const auto grammar = json_schema_grammar(schema, {}, limits);
  if (!grammar.ok()) return grammar.error().message;
  const auto compiled = CompiledGrammar::compile(*grammar, byte_vocabulary());
  return compiled.ok() ? "" : compiled.error().message;
}

BOOST_AUTO_TEST_CASE(types_are_those_of_json) {
  check({
      {"true", {"1", "[]", R"({"a": [null, {"b": "c"}]})", "-0.5e+7", "\"\""}, {"", "01", "[1,]"}},
      {"{}", {"true"}, {"True"}},
      {R"({"type": "null"})", {"null"}, {"0"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"\"true\""}},
      {R"({"type": "integer"})", {"0", "-12", "345"}, {"1.5", "1e3", "01", "-"}},
      {R"({"type": "number"})", {"0", "-12.25", "1e3", "2E-7"}, {".5", "1.", "+1", "NaN"}},
      {R"({"type": ["string", "null"]})", {"\"x\"", "null"}, {"1"}},
      {R"({"type": "string"})",
       {R"("")", R"("a\"b\\\/\u00e9")", "\"\xC3\xA9\xF0\x9F\x99\x82\"", R"("\ud83d\ude42")"},
       {R"("a)", "\"\n\"", "\"\xC3\"", R"("\x")", R"("\ud83d")"}},
      {R"({"type": "array"})", {"[]", "[ ]", "[1, \"a\"]"}, {"[1 2]", "[,]"}},
      {R"({"type": "object"})", {"{}", R"({"a": 1, "b": {}})"}, {"{1: 2}", R"({"a"})"}},
  });
}

BOOST_AUTO_TEST_CASE(white_space_is_bounded) {
  check({{R"({"type": "array", "items": {"type": "null"}})",
          {"[null,null]", "[ null , null ]", "[\n    null,\n    null\n]", "[\r\n\tnull]"},
          {"[\n\nnull]", " []", "[] ", std::string_view("[ \nnull]")}}});
  const std::string blanks(60, ' ');
  const auto grammar = compile_for_bytes(json_schema_grammar(R"({"type": "array"})"));
  BOOST_TEST(!accepts_bytes(*grammar, "[" + blanks + "]"));
  check({{R"({"type": "array"})", {"[1,2]", "[]"}, {"[1, 2]", "[ ]"}}}, {.any_whitespace = false});
  check({{R"({"type": "array"})", {"[1,__2]", "[]"}, {"[1, 2]"}}}, {.whitespace_pattern = "_*"});
}

BOOST_AUTO_TEST_CASE(what_is_no_integer_no_multiple_and_no_constant_can_be_said) {
  check({
      {R"({"not": {"type": "integer"}})", {"1.5", "-0.25", "\"a\"", "null"}, {"1", "-3", "0"}},
      {R"({"type": "number", "not": {"multipleOf": 2}})", {"1", "3.5", "-7"}, {"2", "0", "-4"}},
      {R"({"type": "number", "not": {"multipleOf": 0.5}})", {"1.25", "0.1"}, {"1", "1.5", "-2"}},
      {R"({"type": "integer", "not": {"anyOf": [{"multipleOf": 2}, {"multipleOf": 3}]}})",
       {"1", "35", "-5"},
       {"2", "9", "0", "1.5"}},
      {R"({"type": "number", "not": {"enum": [3, 1.5, 3.0]}})", {"1", "4", "2.5"}, {"3", "1.5"}},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", {"1", "2.5", "-3"}, {"2", "0.5"}},
      {R"({"not": {"enum": [6, "a", true, null]}})", {"5", "false", "[]"}, {"6", "true", "null"}},
      {R"({"not": {"enum": [[1, "a"], []]}})",
       {"[1]", R"([1, "b"])", R"([1, "a", 2])", "{}", "1"},
       {"[]", R"([1, "a"])"}},
      {R"({"not": {"const": {"a": 1, "b": [true]}}})",
       {"{}", R"({"a": 1})", R"({"a": 2, "b": [true]})", R"({"a": 1, "b": [true], "c": 1})", "2"},
       {R"({"a": 1, "b": [true]})"}},
  });
}

BOOST_AUTO_TEST_CASE(properties_may_come_in_any_order) {
  check(
      {{R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
              "c": {"properties": {"x": true, "y": true}}}, "required": ["b", "a"]})",
        {R"({"a": 1, "b": null})", R"({"b":null,"a":1})", R"({"z": 1, "b": null, "y": 2, "a": 1})",
         R"({"c": {"y": 1, "x": 2}, "a": 1, "b": null })"},
        {R"({"b": null})", R"({"b": null, "a": 1, "b": null})", R"({"b": 1, "a": 1})", "{}",
         R"({"a": 1, "z": 2})", R"({"a": 1, "b": null,})", R"({,"a": 1, "b": null})",
         R"({"c": {"y": 1, "y": 2}, "a": 1, "b": null})"}},
       {R"({"type": "object", "properties": {"a": true, "b": true, "c": true},
              "additionalProperties": false, "required": ["c"], "maxProperties": 2})",
        {R"({"c": 1})", R"({"b": 1, "c": 1})", R"({"c": 1, "a": 1})"},
        {R"({"b": 1, "a": 1})", R"({"c": 1, "a": 1, "b": 1})", "{}", R"({"c": 1, "d": 1})"}},
       {R"({"type": "object", "properties": {"a": true}, "minProperties": 2})",
        {R"({"x": 1, "a": 1})", R"({"x": 1, "y": 1, "z": 1})"},
        {R"({"a": 1})", "{}"}},
       {R"({"type": "object", "properties": {"a": true, "b": false},
              "additionalProperties": false, "minProperties": 1})",
        {R"({"a": 1})"},
        {"{}", R"({"b": 1})"}},
       {R"({"type": "object", "properties": {"a": {"$ref": "#"}, "b": true},
              "additionalProperties": false})",
        {"{}", R"({"b": 1, "a": {"a": {}, "b": 1}})"},
        {R"({"b": 1, "a": {"c": {}, "b": 1}})"}},
       {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}},
       {R"({"type": "object", "maxProperties": 0})", {"{}"}, {R"({"a": 1})"}},
       {R"({"enum": [{"a": 1, "b": {"c": [], "d": 2}}, {}]})",
        {R"({"a": 1, "b": {"c": [], "d": 2}})", R"({"b": {"d": 2, "c": []}, "a": 1})", "{}"},
        {R"({"b": {"d": 2, "c": []}})", R"({"a": 1, "a": 1})"}}},
      {.any_order = true});
}

BOOST_AUTO_TEST_CASE(objects_of_any_order_take_no_more_than_the_properties_allow) {
  // Each mask has only bytes that lead to a text: at the limit of properties no other one begins.
  const auto grammar = compile_for_bytes(json_schema_grammar(
      R"({"type": "object", "properties": {"a": true, "b": true, "c": true}, "required": ["a", "b"],
          "maxProperties": 2})",
      {.any_whitespace = false, .any_order = true}));
  const auto behind = grammar->advance(grammar->start(), R"({"b":1,")");
  BOOST_REQUIRE(behind.has_value());
  BOOST_TEST(grammar->forced_text(*behind, 8) == "a\":");
  BOOST_TEST(!grammar->advance(*behind, "c").has_value());
  // A parser that moves to a successor knows what has been there.
  const auto successor = grammar->successor();
  const auto moved = grammar->states_in(*successor, std::vector{*behind});
  BOOST_TEST(successor->forced_text(moved[0], 8) == "a\":");
}

BOOST_AUTO_TEST_CASE(strings_have_lengths_patterns_and_formats) {
  check({
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", "\"\xF0\x9F\x99\x82\xC3\xA9\"", R"("\u00e9\n\ud83d\ude42")"},
       {R"("a")", R"("abcd")", R"("\ud83d\ude42")"}},
      {R"({"type": "string", "pattern": "^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("aB")"}},
      {R"({"type": "string", "pattern": "b\\d"})", {R"("ab1c")", R"("b2")"}, {R"("ab")"}},
      {R"({"type": "string", "pattern": "^.\"$"})", {R"("a\"")", R"("\\\"")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^\\n\\u0001$"})", {R"("\n\u0001")"}, {R"("\n")"}},
      {R"({"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 4})",
       {R"("aa")", R"("aaaa")"},
       {R"("a")", R"("aaaaa")", R"("ab")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("24-1-1")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-02-29T23:59:59Z")", R"("2024-01-01t00:00:00.5+01:00")"},
       {R"("2024-01-01 00:00:00Z")", R"("2024-01-01T24:00:00Z")"}},
      {R"({"type": "string", "format": "time"})", {R"("12:00:00Z")"}, {R"("12:00")"}},
      {R"({"type": "string", "format": "duration"})",
       {R"("P1Y2M3DT4H5M6S")", R"("PT1S")", R"("P2W")"},
       {R"("P")", R"("P1DT")"}},
      {R"({"type": "string", "format": "email"})", {R"("a.b@c.org")"}, {R"("a@")", R"("@b")"}},
      {R"({"type": "string", "format": "ipv4"})", {R"("127.0.0.255")"}, {R"("1.2.3.256")"}},
      {R"({"type": "string", "format": "ipv6"})",
       {R"("::1")", R"("2001:db8::ff00:42:8329")", R"("::")", R"("1:2:3:4:5:6:7:8")",
        R"("::ffff:1.2.3.4")", R"("1::")"},
       {R"("1:2:3:4:5:6:7:8:9")", R"(":::")", R"("1:2")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
      {R"({"type": "string", "format": "uri"})",
       {R"("https://a.org/b?c=d#e")", R"("urn:a:b")", R"("mailto:a@b.c")"},
       {R"("a/b")", R"("http://a b")"}},
      {R"({"type": "string", "format": "json-pointer"})", {R"("/a/~0b/0")", R"("")"}, {R"("a")"}},
      {R"({"minLength": 2})", {R"("ab")", "1", "[]"}, {R"("a")"}},
  });
}

BOOST_AUTO_TEST_CASE(numbers_have_bounds_and_divisors) {
  for (const bool exclusive : {false, true}) {
    for (const int low : {-120, -35, -9, 0, 4, 17, 100}) {
      for (const int high : {-100, -1, 0, 8, 99, 123}) {
        if (low > high || (low == high && exclusive)) continue;
        const std::string prefix = exclusive ? "exclusiveM" : "m";
        const std::string schema = R"({"type": "integer", ")" + prefix + R"(inimum": )" +
                                   std::to_string(low) + ", \"" + prefix + R"(aximum": )" +
                                   std::to_string(high) + "}";
        BOOST_TEST_INFO_SCOPE(schema);
        const int first = low + exclusive;
        const int last = high - exclusive;
        if (first > last) {
          BOOST_TEST(refusal(schema) == "no text fits the grammar");
          continue;
        }
        const auto grammar = compile_for_bytes(json_schema_grammar(schema));
        for (int i = -1300; i <= 1300; ++i)
          BOOST_TEST(accepts_bytes(*grammar, std::to_string(i)) == (first <= i && i <= last), i);
      }
    }
  }
  check({
      {R"({"type": "number", "minimum": -1.25, "maximum": 2.5})",
       {"-1.25", "-1.250", "-1", "0", "2.5", "2.50", "2.4999", "0.001"},
       {"-1.26", "2.51", "3", "-2", "2.500001", "1e0"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.05})",
       {"0.01", "0.0499", "0.0000001"},
       {"0", "0.0", "0.05", "0.050", "-0.01", "1"}},
      {R"({"type": "number", "minimum": 1e3})", {"1000", "1000.0", "20000.5"}, {"999.9", "0"}},
      {R"({"type": "number", "maximum": 5, "exclusiveMaximum": true})", {"4.9"}, {"5", "5.0"}},
      {R"({"type": "integer", "multipleOf": 7})", {"0", "-14", "700"}, {"1", "-13"}},
      {R"({"type": "integer", "multipleOf": 6, "minimum": 10, "maximum": 30})",
       {"12", "30"},
       {"6", "36", "13"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"1", "0.5", "0.75", "-2.25"}, {"0.1", "0.3"}},
      {R"({"type": "number", "multipleOf": 0.01})", {"1.1", "1.23", "4"}, {"1.234"}},
  });
  BOOST_TEST(refusal(R"({"type": "integer", "minimum": 3, "maximum": 4, "multipleOf": 5})") ==
             "no text fits the grammar");
}

BOOST_AUTO_TEST_CASE(arrays_have_items_and_lengths) {
  check({
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2, 3]"},
       {"[]", "[1, 2, 3, 4]", "[\"a\"]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[]", "[1]", "[1, \"a\"]"},
       {"[\"a\"]", "[1, \"a\", 2]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2})",
       {"[1, null]", "[1, 2, 3]"},
       {"[1]", "[]"}},
      {R"({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}})",
       {"[1, null, null]", "[1]"},
       {"[1, 2]"}},
      {R"({"type": "array", "items": false})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": true, "minItems": 1})",
       {R"(["a"])", R"(["b", 3, "a"])"},
       {"[]", R"(["a", "a"])", R"(["a", "b", 3, "a"])"}},
      {R"({"type": "array", "maxItems": 1, "uniqueItems": true})", {"[]", "[{}]"}, {"[1, 2]"}},
  });
}

BOOST_AUTO_TEST_CASE(properties_have_the_order_of_the_keywords_that_name_them) {
  const std::string a = R"("properties": {"a": {}}, "required": ["a"])";
  const std::string other = R"([{"properties": {"b": {}}, "required": ["b"]}])";
  const std::string_view ab = R"({"a": 1, "b": 2})", ba = R"({"b": 2, "a": 1})";
  for (const std::string keyword : {"\"allOf\": ", "\"anyOf\": ", "\"oneOf\": "}) {
    const std::string first = R"({"type": "object", )" + keyword + other + ", " + a + "}";
    const std::string last = R"({"type": "object", )" + a + ", " + keyword + other + "}";
    check({{first, {ba}, {ab}}, {last, {ab}, {ba}}});
  }
  check({{R"({"allOf": [{"anyOf": [{"type": "object", "properties": {"b": {}}}]},
                        {"properties": {"a": {}}, "required": ["a"]}]})",
          {ba, R"({"a": 1})"},
          {R"({"b": 1})"}}});
}

BOOST_AUTO_TEST_CASE(objects_have_properties_in_their_order) {
  check({
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}, "c": {"type": "null"}},
           "required": ["b"], "additionalProperties": false})",
       {R"({"b": 1})", R"({"a": 1, "b": 2, "c": null})", R"({"a":1,"b":[]})",
        R"({"b": 1, "c": null})"},
       {"{}", R"({"a": 1})", R"({"b": 1, "a": 1})", R"({"b": 1, "d": 1})",
        R"({"a": "x", "b": 1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}})",
       {"{}", R"({"a": 1})", R"({"a": 1, "b": "x"})", R"({"ab": "x", "": 1})"},
       {R"({"a": "x"})", R"({"b": 1, "a": "x"})", R"({"\u0061": "x"})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1,
           "maxProperties": 2})",
       {R"({"x": 1})", R"({"x": 1, "y": 2})"},
       {"{}", R"({"x": 1, "y": 2, "z": 3})", R"({"x": "1"})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false,
           "minProperties": 2, "maxProperties": 2})",
       {R"({"a": 1, "b": 2})", R"({"a": 1, "c": 2})", R"({"b": 1, "c": 2})"},
       {"{}", R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})"}},
      {R"({"type": "object", "patternProperties": {"^i": {"type": "integer"}, "s$": {"type": "string"}},
           "additionalProperties": false})",
       {R"({"i1": 2})", R"({"ts": "x", "i": 0})"},
       {R"({"i1": "x"})", R"({"is": 1})", R"({"is": "x"})", R"({"o": 1})"}},
      {R"({"type": "object", "properties": {"i": {"minimum": 3}},
           "patternProperties": {"^i": {"type": "integer"}}})",
       {R"({"i": 3})", R"({"i": 4, "i2": 1, "o": "x"})"},
       {R"({"i": 2})", R"({"i": 3.5})", R"({"i2": "x"})"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}})",
       {R"({"ab": 1})", "{}"},
       {R"({"a": 1})", R"({"AB": 1})"}},
      {R"({"type": "object", "required": ["x"], "additionalProperties": {"type": "null"}})",
       {R"({"x": null})", R"({"x": null, "y": null})"},
       {R"({"y": null})", R"({"x": 1})"}},
      {R"({"type": "object", "properties": {"a": false, "b": {}}})",
       {R"({"b": 1})"},
       {R"({"a": 1})"}},
  });
  check({{R"({"type": "object", "properties": {"a": {}}})", {R"({"a": 1})"}, {R"({"b": 1})"}}},
        {.disable_additional_properties = true});
}

BOOST_AUTO_TEST_CASE(schemas_are_combined) {
  check({
      {R"({"enum": ["a", 1, null, {"b": [1, 2]}]})",
       {R"("a")", "1", "null", R"({"b": [1, 2]})", R"({"b":[1,2]})"},
       {R"("b")", R"({"b": [2, 1]})"}},
      {R"({"enum": ["abc", "d", 1, 20], "minLength": 2, "maximum": 10})",
       {R"("abc")", "1"},
       {R"("d")", "20"}},
      {R"({"anyOf": [{"enum": [1, 2], "minimum": 5, "maximum": 4}, {"type": "null"}]})",
       {"null"},
       {"1"}},
      {R"({"const": "x\"y"})", {R"("x\"y")"}, {R"("x")"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^a"}]})",
       {R"("abc")", R"("a")"},
       {R"("b")", "1"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "null"}]})", {"1", "null"}, {R"("a")"}},
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}},
                      "required": ["k"], "additionalProperties": false},
                     {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"],
                      "additionalProperties": false}]})",
       {R"({"k": "a", "v": 1})", R"({"k": "b"})"},
       {R"({"k": "b", "v": 1})", "{}"}},
      {R"({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}, {"type": ["number", "null"]}]})",
       {"3", "5"},
       {"2", "6", "null", "3.5"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"b": {"type": "null"}, "a": {"minimum": 0}}, "required": ["b"]}]})",
       {R"({"a": 1, "b": null})"},
       {R"({"a": -1, "b": null})", R"({"a": 1})", R"({"b": null})"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": false},
                     {"properties": {"b": {}}}]})",
       {R"({"a": 1})", "{}"},
       {R"({"b": 1})"}},
      {R"({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}})",
       {"[1, 2]"},
       {"[null]"}},
      {R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
           "required": ["v"], "additionalProperties": false})",
       {R"({"v": 1, "next": {"v": 2, "next": {"v": 3}}})"},
       {R"({"v": 1, "next": {}})", R"({"v": 1, "next": null})"}},
      {R"({"$defs": {"t": {"type": "object", "properties": {"c": {"type": "array", "items":
            {"$ref": "#/$defs/t", "required": ["n"]}}, "n": {"type": "string"}},
            "additionalProperties": false}}, "$ref": "#/$defs/t"})",
       {R"({"c": [{"n": "x"}, {"c": [{"n": "y"}], "n": "z"}]})", "{}"},
       {R"({"c": [{}]})", R"({"c": [{"c": [{}], "n": "z"}]})"}},
      {R"({"$defs": {"a/b": {"$anchor": "x", "type": "null"}}, "anyOf": [{"$ref": "#/$defs/a~1b"},
           {"type": "array", "items": {"$ref": "#x"}}]})",
       {"null", "[null]"},
       {"1"}},
  });
}

BOOST_AUTO_TEST_CASE(beside_a_reference_nothing_counts_up_to_draft_7) {
  const std::string rest =
      R"("properties": {"a": {"$ref": "#/$defs/b", "enum": [1]}}, "$defs": {"b": {"type": "integer"}}})";
  const std::string old = R"({"$schema": "http://json-schema.org/draft-07/schema#", )" + rest;
  const std::string now = R"({"$schema": "https://json-schema.org/draft/2020-12/schema", )" + rest;
  check({{old, {R"({"a": 1})", R"({"a": 2})"}, {R"({"a": "x"})"}},
         {now, {R"({"a": 1})"}, {R"({"a": 2})", R"({"a": "x"})"}}});
}

BOOST_AUTO_TEST_CASE(what_a_grammar_cannot_hold_is_refused_by_its_name) {
  for (const std::string keyword : {"$dynamicRef", "$recursiveRef", "disallow"})
    BOOST_TEST(refusal("{\"" + keyword + "\": {\"type\": \"null\"}}") ==
               "json_schema: the keyword '" + keyword + "' is not supported");
  BOOST_TEST(
      refusal(R"({"contains": {"format": "date"}, "maxContains": 1})").find("'maxContains'") !=
      std::string::npos);
  BOOST_TEST(refusal(R"({"contains": {"const": 2}, "unevaluatedItems": false})")
                 .find("'unevaluatedItems' beside 'contains'") != std::string::npos);
  BOOST_TEST(refusal(R"({"not": {"format": "date"}})") ==
             "json_schema: 'not' is supported for types, constants, texts, bounds, multiples, "
             "'required' and 'properties'");
  BOOST_TEST(
      refusal(R"({"if": {"propertyNames": {"maxLength": 1}}, "then": false})").find("'if' is") !=
      std::string::npos);
  BOOST_TEST(refusal(R"({"dependentRequired": {"a": {}}})") ==
             "json_schema: 'dependentRequired' of 'a' must be a list of names");
  BOOST_TEST(refusal(R"({"dependentSchemas": {"a": ["b"]}})") ==
             "json_schema: 'dependentSchemas' of 'a' must be a schema");
  BOOST_TEST(refusal(R"({"type": "string", "format": "regex"})") ==
             "json_schema: the format 'regex' is not supported");
  BOOST_TEST(refusal(R"({"oneOf": [{"format": "date"}, {"format": "time"}]})").find("'oneOf'") !=
             std::string::npos);
  BOOST_TEST(refusal(R"({"type": "array", "uniqueItems": true})").find("'uniqueItems'") !=
             std::string::npos);
  BOOST_TEST(refusal(R"({"$ref": "https://a.org/b"})").find("does not lead into") !=
             std::string::npos);
  BOOST_TEST(refusal(R"({"$ref": "#/$defs/x"})").find("does not lead into") != std::string::npos);
  BOOST_TEST(refusal(R"({"type": "text"})") == "json_schema: 'type' \"text\" is unknown");
  BOOST_TEST(refusal("{\"pattern\": \"(?=a)\", \"type\": \"string\"}").find("look-ahead") !=
             std::string::npos);
  BOOST_TEST(refusal("{").find("no JSON") != std::string::npos);
  BOOST_TEST(refusal("[]").find("must be an object") != std::string::npos);
  BOOST_TEST(refusal("false") == "no text fits the grammar");
  BOOST_TEST(refusal(R"({"type": "object", "minProperties": 2, "maxProperties": 1})") ==
             "no text fits the grammar");
  BOOST_TEST(refusal(R"({"type": "string", "minLength": -1})").find("'minLength'") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(not_if_and_dependencies_are_what_is_left_of_the_others) {
  check({
      {R"({"not": {"type": ["string", "null"]}})", {"1", "[]", "true"}, {R"("a")", "null"}},
      {R"({"type": "string", "not": {"enum": ["a", "b\"", "é"]}})",
       {R"("c")", R"("")", R"("aa")"},
       {R"("a")", R"("b\"")", R"("é")", "1"}},
      {R"({"type": ["string", "boolean"], "not": {"const": true}})",
       {"false", R"("true")"},
       {"true"}},
      {R"({"type": "string", "not": {"pattern": "^x|y$"}})",
       {R"("ax")", R"("")"},
       {R"("xa")", R"("ay")"}},
      {R"({"type": "string", "not": {"not": {"minLength": 2, "pattern": "a"}}})",
       {R"("ab")"},
       {R"("a")", R"("bb")"}},
      {R"({"type": "integer", "not": {"minimum": 3, "maximum": 5}})", {"2", "6"}, {"3", "5"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
           "not": {"required": ["a", "b"]}})",
       {"{}", R"({"a": 1})", R"({"b": 1})"},
       {R"({"a": 1, "b": 1})"}},
      {R"({"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "v": {}},
           "additionalProperties": false, "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
           "then": {"required": ["v"]}, "else": {"properties": {"v": false}}})",
       {R"({"k": "x", "v": 1})", R"({"k": "y"})", "{}"},
       {R"({"k": "x"})", R"({"k": "y", "v": 1})", R"({"v": 1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false,
           "dependentRequired": {"a": ["c"]}, "dependentSchemas": {"b": {"minProperties": 2}}})",
       {"{}", R"({"a": 1, "c": 1})", R"({"b": 1, "c": 1})"},
       {R"({"a": 1})", R"({"b": 1})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false,
           "dependencies": {"a": ["b"], "b": "c", "c": {"properties": {"c": {"type": "null"}}}}})",
       {R"({"a": 1, "b": 1, "c": null})", R"({"b": 1, "c": null})"},
       {R"({"a": 1})", R"({"b": 1})", R"({"c": 1})"}},
      // One of them, and not both.
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
           "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a": 1})", R"({"b": 1})"},
       {"{}", R"({"a": 1, "b": 1})"}},
      {R"({"oneOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": false},
                     {"type": "object", "properties": {"b": {}}, "required": ["b"]}]})",
       {"{}", R"({"a": 1})", R"({"b": 1})", R"({"b": 1, "c": 1})"},
       {R"({"c": 1})"}},
      {R"({"oneOf": [{"type": "number", "minimum": 3}, {"type": "number", "maximum": 5}]})",
       {"2", "6.5"},
       {"3", "4", "5"}},
      // A format that the specification does not know says nothing.
      {R"({"type": "string", "format": "topic"})", {R"("a")"}, {"1"}},
  });
}

BOOST_AUTO_TEST_CASE(items_that_match_are_counted) {
  check({
      {R"({"type": "array", "contains": {"type": "integer"}})",
       {"[1]", "[null, 2, \"a\"]"},
       {"[]", "[null]", "[1.5]"}},
      {R"({"contains": {"type": "null"}, "minContains": 2, "maxContains": 3, "maxItems": 4})",
       {"[null, 1, null]", "[null,null,null]", "5", "[1,null,null,2]"},
       {"[null]", "[null,null,null,null]", "[null,null,1,2,3]"}},
      {R"({"type": "array", "contains": {"enum": ["a"]}, "minContains": 0, "maxContains": 1,
           "items": {"type": "string"}, "minItems": 1})",
       {R"(["a"])", R"(["b", "a", "c"])", R"(["b"])"},
       {"[]", R"(["a", "a"])", R"(["a", 1])"}},
      {R"({"type": "array", "prefixItems": [{"type": "null"}], "contains": {"type": "null"},
           "minContains": 2})",
       {"[null, 1, null]"},
       {"[null, 1]", "[1, null, null]"}},
      {R"({"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]})",
       {"[2, 1]", "[1, 3, 2]"},
       {"[1]", "[2, 2]"}},
      {R"({"type": "array", "not": {"contains": {"type": "null"}}})", {"[]", "[1]"}, {"[1, null]"}},
      {R"({"type": "array", "not": {"items": {"type": "null"}}})",
       {"[1]", "[null, 1]"},
       {"[]", "[null]"}},
      {R"({"type": "array", "not": {"prefixItems": [{}, {"type": "null"}]}})",
       {"[1, 2]"},
       {"[]", "[1]", "[1, null]"}},
      {R"({"contains": false})", {"1", "{}"}, {"[]", "[1]"}},
      {R"({"type": "array", "minContains": 5})", {"[]"}, {"1"}},
  });
}

BOOST_AUTO_TEST_CASE(items_of_few_values_may_have_to_differ) {
  check({
      {R"({"type": "array", "uniqueItems": true, "items": {"type": ["boolean", "null"]}})",
       {"[]", "[true, null, false]"},
       {"[true, true]", "[1]"}},
      {R"({"type": "array", "uniqueItems": true, "minItems": 2, "maxItems": 3,
           "items": {"type": "integer", "minimum": 1, "maximum": 20}})",
       {"[1, 12]", "[20,2,12]"},
       {"[1]", "[1, 1]", "[12,2,12]", "[1,2,3,4]", "[21, 1]"}},
      {R"({"type": "array", "uniqueItems": true, "items": {"enum":
           ["a", "b", "c", "d", "e", "f", "g", "h", "ha", "a\""]}})",
       {"[]", R"(["ha", "h", "a", "a\""])"},
       {R"(["a", "b", "a"])", R"(["i"])", R"(["a\"", "a\""])"}},
  });
}

BOOST_AUTO_TEST_CASE(what_no_keyword_evaluates_may_be_closed) {
  check({
      {R"({"$defs": {"base": {"properties": {"a": {"type": "null"}}}}, "type": "object",
           "$ref": "#/$defs/base", "properties": {"b": {}}, "unevaluatedProperties": false})",
       {"{}", R"({"a": null, "b": 1})"},
       {R"({"a": 1})", R"({"c": 1})"}},
      {R"({"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"],
           "oneOf": [{"properties": {"k": {"const": "x"}, "x": {"type": "integer"}}, "required": ["k"]},
                     {"properties": {"k": {"const": "y"}, "y": {"type": "integer"}}, "required": ["k"]}],
           "unevaluatedProperties": {"type": "null"}})",
       {R"({"k": "x", "x": 1})", R"({"k": "y", "y": 1})", R"({"k": "x", "z": null})"},
       {R"({"k": "x", "x": 1, "y": 1})", R"({"k": "y", "z": 1})", R"({"k": "z"})"}},
      {R"({"type": "object", "anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                                       {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
           "unevaluatedProperties": false})",
       {R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 1})"},
       {"{}", R"({"a": 1, "b": null})", R"({"a": 1, "c": 1})"}},
      {R"({"type": "object", "properties": {"a": {}}, "if": {"required": ["a"]},
           "then": {"properties": {"b": {}}}, "unevaluatedProperties": false})",
       {"{}", R"({"a": 1, "b": 1})"},
       {R"({"b": 1})", R"({"a": 1, "c": 1})"}},
      {R"({"type": "object", "allOf": [{"additionalProperties": true}], "unevaluatedProperties": false})",
       {R"({"a": 1})"},
       {"1"}},
      {R"({"type": "array", "allOf": [{"prefixItems": [{"type": "null"}]}], "unevaluatedItems": false})",
       {"[]", "[null]"},
       {"[1]", "[null, 1]"}},
      {R"({"type": "array", "allOf": [{"items": {"type": "null"}}], "unevaluatedItems": false})",
       {"[]", "[null, null]"},
       {"[1]"}},
  });
}

BOOST_AUTO_TEST_CASE(names_of_resources_are_those_of_their_standards) {
  check({
      {R"({"type": "string", "format": "iri"})",
       {R"("http://Ã¤.org/ä¸­?q=1")"},
       {R"("/a")", R"("a b:c")"}},
      {R"({"type": "string", "format": "iri-reference"})", {R"("/Ã¤#x")"}, {R"("a|b")"}},
      {R"({"type": "string", "format": "uri-template"})",
       {R"("/a/{b}/{?c,d*,e:3}")", R"("")"},
       {R"("/{")", R"("{a b}")", R"("{a:0}")"}},
  });
}

BOOST_AUTO_TEST_CASE(keywords_that_lead_back_to_themselves_are_refused) {
  for (const char* schema :
       {R"({"oneOf": [{"$ref": "#"}, {"type": "string"}]})", R"({"not": {"$ref": "#"}})",
        R"({"if": {"$ref": "#"}, "then": {"type": "null"}})",
        R"({"not": {"properties": {"a": {"$ref": "#"}}}})"})
    BOOST_TEST(refusal(schema) != "", schema);
  BOOST_TEST(refusal(R"({"$ref": "#/$defs/q", "$defs": {"q": {"type": "object", "properties":
                         {"a": {"const": 108}}, "patternProperties": {"^a": {"$ref": "#/$defs/q"}}}}})") !=
             "");
}

BOOST_AUTO_TEST_CASE(a_hostile_schema_is_refused_by_a_limit) {
  BOOST_TEST(refusal(R"({"$ref": "#"})") == "no text fits the grammar");
  BOOST_TEST(refusal(R"({"allOf": [{"$ref": "#"}]})").find("64 times") != std::string::npos);
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"items":)";
  BOOST_TEST(refusal(deep + "{}" + std::string(100, '}')).find("64 levels") != std::string::npos);
  // 2^40 ways through pairs of alternatives.
  std::string all = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i)
    all += (i > 0 ? "," : "") + std::string(R"({"anyOf":[{"minLength":)") + std::to_string(i) +
           R"(},{"pattern":"a)" + std::to_string(i) + "\"}]}";
  BOOST_TEST(refusal(all + "]}") != "");
  // The same alternatives, reached in many ways, are looked at once.
  std::string again =
      R"({"$defs":{"x":{"anyOf":[{"required":["a"]},{"required":["b"]}]}},"allOf":[)";
  for (int i = 0; i < 40; ++i) again += (i > 0 ? "," : "") + std::string(R"({"$ref":"#/$defs/x"})");
  BOOST_TEST(refusal(again + "]}") == "");
  GrammarLimits limits;
  limits.max_nodes = 1000;
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 2000; ++i) wide += (i > 0 ? "," : "") + ("\"p" + std::to_string(i) + "\":{}");
  BOOST_TEST(refusal(wide + "}}", limits).find("1000 parts") != std::string::npos);
  BOOST_TEST(refusal(R"({"type":"object","minProperties":60000,"properties":{"a":{},"b":{}}})")
                 .find("too many states") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(titles_and_comments_of_schemas_are_no_part_of_them) {
  check({
      // Where they are names of properties, values, or what a reference leads to, they stay.
      {R"({"title": "T", "description": "D", "type": "object", "required": ["title", "description"],
          "properties": {"title": {"const": {"title": "a"}}, "description": {"enum": ["comment"]}}})",
       {R"({"title": {"title": "a"}, "description": "comment"})"},
       {R"({"title": {}, "description": "comment"})"}},
      {R"({"$ref": "#/types/title", "types": {"title": {"description": "D", "type": "null"}}})",
       {"null"},
       {"1"}},
      {R"({"type": "integer", "type": "null"})", {"null"}, {"1"}},  // the last one counts
  });
  const auto nested = [](std::size_t depth) {
    return R"({"default": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  BOOST_TEST(refusal(nested(64)) == "");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nul"), std::string("{}}"),
        std::string("[] {}"), std::string("{\"a\":1,}"), std::string("{\"a\" 1}"),
        std::string("{\"a\":nul}"), std::string("{\"a\":[1 2]}"), std::string("{\"a\":01}"),
        std::string("{\"a\":1e999}"), std::string("{\"a\":\"\\q\"}"),
        std::string("{\"title\":\"\\q\"}"), std::string("{\"title\":}"), nested(65)})
    BOOST_TEST(
        refusal(text) == "json_schema: the schema is no JSON, or is nested deeper than 64 levels",
        text);
}

BOOST_AUTO_TEST_CASE(rules_without_a_text_are_dead_ends_that_no_text_leads_to) {
  check({
      {R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "minLength": 2},
          "b": {"type": "integer", "minimum": 3, "maximum": 2}, "c": {"$ref": "#/properties/a"}}})",
       {"{}", R"({"d": 1})"},
       {R"({"a")", R"({"b")", R"({"c")"}},
      {R"({"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
          "properties": {"a": {"$ref": "#/$defs/x"}}, "type": "object"})",
       {"{}", R"({"b": 1})"},
       {R"({"a": [)"}},
  });
  const auto grammar = compile_for_bytes(json_schema_grammar(
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^a$","minLength":2}},
          "additionalProperties":false})"));
  const auto state = grammar->advance(grammar->start(), "{");
  BOOST_REQUIRE(state.has_value());
  BOOST_TEST(!grammar->advance(*state, "\"").has_value());
}

BOOST_AUTO_TEST_CASE(json_object_takes_any_object) {
  const auto grammar = compile_for_bytes(json_object_grammar());
  BOOST_TEST(accepts_bytes(*grammar, R"({"a": [1, {"b": null}], "c": "\u00e9"})"));
  BOOST_TEST(accepts_bytes(*grammar, "{}"));
  BOOST_TEST(!accepts_bytes(*grammar, "[]"));
  BOOST_TEST(!accepts_bytes(*grammar, R"({"a": 1)"));
}

}  // namespace
}  // namespace troupe
