// What a request asks for as the structure of its output.

#include <boost/test/unit_test.hpp>
#include <string>

#include "runtime/http/openai_request.hpp"
#include "tests/runtime/http/request_defaults.hpp"

namespace troupe {
namespace {

using Kind = StructuredOutputKind;

/// The same of both APIs.
std::optional<StructuredOutputsParams> structured(const std::string& fields) {
  const auto completion = parse_completion_request(R"({"prompt":"a",)" + fields + "}", defaults());
  const auto chat = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a"}],)" + fields + "}", defaults());
  BOOST_REQUIRE_MESSAGE(completion.ok(), (completion.ok() ? "" : completion.error().message));
  BOOST_REQUIRE(chat.ok());
  BOOST_TEST((completion->params.structured_outputs == chat->params.structured_outputs));
  return completion->params.structured_outputs;
}

void check(const std::string& fields, Kind kind, const std::vector<std::string>& texts,
           const std::string& field) {
  BOOST_TEST_CONTEXT(fields) {
    const auto what = structured(fields);
    BOOST_REQUIRE(what.has_value());
    BOOST_TEST((what->kind == kind));
    BOOST_TEST(what->texts.get() == texts, boost::test_tools::per_element());
    BOOST_TEST(what->field == field);
    BOOST_TEST(!what->disable_any_whitespace);
    BOOST_TEST(!what->disable_additional_properties);
    BOOST_TEST(!what->whitespace_pattern.has_value());
  }
}

BOOST_AUTO_TEST_CASE(each_form_says_what_it_asks_for) {
  const std::string format = "response_format";
  check(R"("response_format":{"type":"json_object"})", Kind::kJsonObject, {}, format);
  check(R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true,)"
        R"("schema":{"type": "object"}}})",
        Kind::kJsonSchema, {R"({"type":"object"})"}, format);
  const std::string outputs = "structured_outputs";
  check(R"("structured_outputs":{"json":{"enum":[1.5]}})", Kind::kJsonSchema, {R"({"enum":[1.5]})"},
        outputs);
  check(R"("structured_outputs":{"json":"{\"enum\": [1]}"})", Kind::kJsonSchema,
        {R"({"enum": [1]})"}, outputs);
  check(R"("structured_outputs":{"json_object":true})", Kind::kJsonObject, {}, outputs);
  check(R"("structured_outputs":{"regex":"a+","json":null})", Kind::kRegex, {"a+"}, outputs);
  check(R"("structured_outputs":{"choice":["a","b"]})", Kind::kChoice, {"a", "b"}, outputs);
  check(R"("structured_outputs":{"grammar":"root ::= \"a\""})", Kind::kGrammar, {R"(root ::= "a")"},
        outputs);
  check(R"("guided_json":{"type":"null"},"guided_decoding_backend":"outlines")", Kind::kJsonSchema,
        {R"({"type":"null"})"}, "guided_json");
  check(R"("guided_json_object":true)", Kind::kJsonObject, {}, "guided_json_object");
  check(R"("guided_regex":"a+")", Kind::kRegex, {"a+"}, "guided_regex");
  check(R"("guided_choice":["a"])", Kind::kChoice, {"a"}, "guided_choice");
  check(R"("guided_grammar":"g","response_format":{"type":"text"})", Kind::kGrammar, {"g"},
        "guided_grammar");
  for (const char* nothing : {R"("response_format":{"type":"text"})", R"("response_format":null)",
                              R"("structured_outputs":null)", R"("guided_regex":null)"})
    BOOST_TEST(!structured(nothing).has_value());
}

BOOST_AUTO_TEST_CASE(white_space_and_properties_are_the_requests_to_choose) {
  const auto what = structured(
      R"("structured_outputs":{"json":{},"disable_any_whitespace":true,)"
      R"("disable_additional_properties":true,"any_order":true,"whitespace_pattern":" ?"})");
  BOOST_TEST(what->disable_any_whitespace);
  BOOST_TEST(what->disable_additional_properties);
  BOOST_TEST(what->any_order);
  BOOST_TEST(what->whitespace_pattern.value() == " ?");
  BOOST_TEST(structured(R"("guided_json":{},"guided_whitespace_pattern":"x")")
                 ->whitespace_pattern.value() == "x");
}

struct Bad {
  const char* fields;
  const char* param;
  const char* message;  ///< a part of it
};
constexpr Bad kBad[] = {
    {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
     "response_format.json_schema.name", "required"},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
     "response_format.json_schema.schema", "required"},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":[1]}})",
     "response_format.json_schema.schema", "JSON Schema"},
    {R"("structured_outputs":{})", "structured_outputs", "exactly one of"},
    {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs",
     "exactly one of json, regex, choice, grammar, json_object and structural_tag, it has 2"},
    {R"("structured_outputs":"json")", "structured_outputs", "an object"},
    {R"("structured_outputs":{"structural_tag":"{}","regex":"a"})", "structured_outputs",
     "it has 2"},
    {R"("structured_outputs":{"regex":"a","lark":"b"})", "structured_outputs",
     "structured_outputs.lark is not supported"},
    {R"("structured_outputs":{"json_object":false})", "structured_outputs.json_object",
     "must be true"},
    {R"("structured_outputs":{"regex":""})", "structured_outputs.regex", "must not be empty"},
    {R"("structured_outputs":{"regex":5})", "structured_outputs.regex", "a string"},
    {R"("structured_outputs":{"grammar":""})", "structured_outputs.grammar", "must not be empty"},
    {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "must not be empty"},
    {R"("structured_outputs":{"choice":"a"})", "structured_outputs.choice", "array of strings"},
    {R"("structured_outputs":{"choice":["a",1]})", "structured_outputs.choice.1", "a string"},
    {R"("structured_outputs":{"json":7})", "structured_outputs.json", "JSON Schema"},
    {R"("structured_outputs":{"json":{},"whitespace_pattern":1})",
     "structured_outputs.whitespace_pattern", "a string"},
    {R"("guided_choice":[])", "guided_choice", "must not be empty"},
    {R"("guided_json_object":false)", "guided_json_object", "must be true"},
    {R"("guided_regex":"a","guided_json":{})", "guided_regex", "cannot both be set"},
    {R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
     "structured_outputs", "response_format and structured_outputs cannot both be set"},
};

BOOST_AUTO_TEST_CASE(what_is_wrong_is_named) {
  for (const Bad& bad : kBad) {
    BOOST_TEST_CONTEXT(bad.fields) {
      const auto request =
          parse_completion_request(R"({"prompt":"a",)" + std::string(bad.fields) + "}", defaults());
      BOOST_REQUIRE(!request.ok());
      BOOST_TEST(request.error().param == bad.param);
      BOOST_TEST(request.error().message.find(bad.message) != std::string::npos,
                 request.error().message);
    }
  }
}

}  // namespace
}  // namespace troupe
