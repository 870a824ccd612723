#include "runtime/tool_parsers/tool_schemas.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

constexpr const char* kTools = R"([
  {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":
    {"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"array","items":{"$ref":"#/$defs/A"}}}}}},
  {"type":"function","function":{"name":"g"}}])";

BOOST_AUTO_TEST_CASE(a_named_function_is_held_to_its_parameters) {
  BOOST_TEST(parameters_schema(kTools, "g").value() == R"({"type":"object","properties":{}})");
  BOOST_TEST(parameters_schema(kTools, "f").value().starts_with(R"({"type":"object")"));
  BOOST_TEST((parameters_schema(kTools, "h").error().code == ErrorCode::kNotFound));
}

BOOST_AUTO_TEST_CASE(required_calls_are_an_array_with_definitions_at_its_root) {
  BOOST_TEST(calls_schema(kTools, false).value() ==
             R"({"type":"array","minItems":1,"items":{"anyOf":[{"type":"object","properties":)"
             R"({"name":{"const":"f"},"parameters":{"type":"object","properties":)"
             R"({"a":{"$ref":"#/$defs/tool0.A"}}}},"required":["name","parameters"],)"
             R"("additionalProperties":false},{"type":"object","properties":{"name":{"const":"g"},)"
             R"("parameters":{"type":"object","properties":{}}},"required":["name","parameters"],)"
             R"("additionalProperties":false}]},"maxItems":1,"$defs":{"tool0.A":{"type":"array",)"
             R"("items":{"$ref":"#/$defs/tool0.A"}}}})");
  BOOST_TEST(calls_schema(kTools, true).value().find("maxItems") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_pattern_that_parses_calls_also_holds_them) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","strict":true,
      "parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}},
      {"type":"function","function":{"name":"g\""}}])";
  const auto tag = [&](const char* format, const CallRule& rule) {
    return calls_tag(*find_tool_format(format), tools, rule).value();
  };
  BOOST_TEST(*tag("hermes", {}) ==
             R"({"format":{"type":"triggered_tags","triggers":["<tool_call>"],"tags":[)"
             R"({"type":"tag","begin":"<tool_call>\n{\"name\": \"f\", \"arguments\": ",)"
             R"("content":{"type":"json_schema","json_schema":)"
             R"({"type":"object","properties":{"a":{"type":"integer"}}}},"end":"}\n</tool_call>"},)"
             R"({"type":"tag","begin":"<tool_call>\n{\"name\": \"g\\\"\", \"arguments\": ",)"
             R"("content":{"type":"json_schema","json_schema":{"type":"object"}},)"
             R"("end":"}\n</tool_call>"}],"stop_after_first":false}})");
  const std::string named = *tag("hermes", {.function = "f", .required = true, .parallel = false});
  BOOST_TEST(named.starts_with(R"({"format":{"type":"tags_with_separator","separator":"\n",)"
                               R"("at_least_one":true,"tags":[{)"));
  BOOST_TEST(named.ends_with(R"("stop_after_first":true}})"));
  BOOST_TEST(named.find("\"g") == std::string::npos);
  for (const char* format : {"pythonic", "functiongemma", "openai"})
    BOOST_TEST(!tag(format, {}).has_value(), format);
  // Their names are none of Python's; a value with '<' could hide the end of a parameter.
  BOOST_TEST(!tag("pythonic", {.required = true}).has_value());
  const std::string less = R"([{"type":"function","function":{"name":"f",
      "parameters":{"type":"object","properties":{"a":{"enum":["<"]}}}}}])";
  BOOST_TEST(
      !calls_tag(*find_tool_format("qwen3_coder"), less, {.required = true}).value().has_value());
  BOOST_TEST(calls_tag(*find_tool_format("hermes"), tools, {.function = "h"}).error().message ==
             "there is no tool 'h'");
  BOOST_TEST(has_strict_tool(tools));
  BOOST_TEST(!has_strict_tool(R"([{"function":{"name":"f","strict":false}}])"));
  BOOST_TEST(shown_tools(R"([{"function":{"name":"f","strict":false,"parameters":{}}}])") ==
             R"([{"function":{"name":"f","parameters":{}}}])");
  BOOST_TEST(shown_tools(R"([{"function":{"name":"f"}}])") ==
             R"([{"function":{"name":"f","parameters":{"type":"object","properties":{}}}}])");
  const char* const kept = R"([{"function": {"name":"f","parameters":{"type":"object"}}}])";
  BOOST_TEST(shown_tools(kept) == kept);
}

}  // namespace
}  // namespace troupe
