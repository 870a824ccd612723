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

}  // namespace
}  // namespace troupe
