// Calls that a grammar holds in a model's own format: what it takes is parsed as calls that fit.

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/structured_output/structural_tag.hpp"
#include "runtime/tool_parsers/answer_parser.hpp"
#include "runtime/tool_parsers/tool_call_parser.hpp"
#include "runtime/tool_parsers/tool_schemas.hpp"
#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

constexpr const char* kHeldTools = R"([
  {"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{
    "text":{"type":"string","minLength":1}, "kind":{"enum":["a","b c"]},
    "limit":{"type":"integer","maximum":20}, "tags":{"type":"array","items":{"type":"string"}}},
    "required":["text","limit"]}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}])";

/// The calls of an answer, as JSON.
std::string calls_of(const ToolFormat& format, const std::string& answer) {
  ToolCallParser parser(format, std::make_shared<const ToolDeclarations>(
                                    ToolDeclarations::parse(kHeldTools).value()));
  AnswerDelta delta;
  parser.feed(answer, delta);
  parser.finish(delta);
  std::vector<std::pair<std::string, std::string>> calls;
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.name.empty()) {
      calls.emplace_back(call.name, call.arguments);
    } else {
      calls.at(static_cast<std::size_t>(call.index)).second += call.arguments;
    }
  }
  std::string all = delta.content;
  for (const auto& [name, arguments] : calls)
    all += name + Json::parse(arguments, nullptr, false).dump();
  return all;
}

struct HeldCase {
  std::string_view format;
  std::vector<std::pair<std::string, std::string>> taken;  ///< answers and their calls
  std::vector<std::string> refused;
};

BOOST_AUTO_TEST_CASE(forced_calls_are_held_also_where_arguments_are_no_json) {
  for (const HeldCase& c : std::vector<HeldCase>{
           {"qwen3_coder",
            {{"<tool_call>\n<function=find>\n<parameter=text>\n\n<b>\n\n</parameter>\n"
              "<parameter=kind>\nb c\n</parameter>\n<parameter=limit>\n20\n</parameter>\n"
              "<parameter=tags>\n[\"\\u003c/parameter>\", \"é\"]\n</parameter>\n</function>\n"
              "</tool_call>",
              R"(find{"kind":"b c","limit":20,"tags":["</parameter>","é"],"text":"\n<b>\n"})"},
             {"<tool_call>\n<function=stop>\n\n</function>\n</tool_call>", "stop{}"}},
            {"<tool_call>\n<function=find>\n<parameter=text>\nx\n</parameter>\n</function>\n"
             "</tool_call>",
             "<tool_call>\n<function=find>\n<parameter=text>\n\n</"
             "parameter>\n<parameter=limit>\n1\n"
             "</parameter>\n</function>\n</tool_call>",
             "<tool_call>\n<function=find>\n<parameter=text>\nx\n</"
             "parameter>\n<parameter=limit>\n21\n"
             "</parameter>\n</function>\n</tool_call>",
             "<tool_call>\n<function=find>\n<parameter=text>\nx</parameter>y\n</parameter>\n"
             "<parameter=limit>\n1\n</parameter>\n</function>\n</tool_call>",
             "no call"}},
           {"glm45",
            {{"<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>x y</arg_value>\n"
              "<arg_key>limit</arg_key>\n<arg_value>-3</arg_value>\n</tool_call>",
              R"(find{"limit":-3,"text":"x y"})"}},
            {"<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>\nx</arg_value>\n"
             "<arg_key>limit</arg_key>\n<arg_value>-3</arg_value>\n</tool_call>"}},
           {"seed_oss",
            {{"<seed:tool_call>\n<function=find>\n<parameter=text>x</parameter>\n"
              "<parameter=limit>1</parameter>\n</function>\n</seed:tool_call>",
              R"(find{"limit":1,"text":"x"})"}},
            {}},
           {"pythonic",
            {{R"x([find(text="a, \"b\")", limit=3, tags=["x"]), stop()])x",
              R"x(find{"limit":3,"tags":["x"],"text":"a, \"b\")"}stop{})x"}},
            {"[]", "[find(text=1, limit=3)]", "[find(limit=3)]", "[stop()"}},
           {"nemotron_json",
            {{R"(<TOOLCALL>[{"name": "stop", "arguments": {}}, {"name": "stop", "arguments": {}}])"
              "</TOOLCALL>",
              "stop{}stop{}"}},
            {"<TOOLCALL>[]</TOOLCALL>",
             R"(<TOOLCALL>[{"name": "go", "arguments": {}}]</TOOLCALL>)"}}}) {
    BOOST_TEST_INFO_SCOPE(c.format);
    const ToolFormat* const format = find_tool_format(c.format);
    const auto tag = calls_tag(*format, kHeldTools, {.required = true}).value();
    BOOST_REQUIRE(tag.has_value());
    const auto grammar = compile_for_bytes(structural_tag_grammar(*tag));
    for (const auto& [answer, calls] : c.taken) {
      BOOST_TEST(accepts_bytes(*grammar, answer), answer);
      BOOST_TEST(calls_of(*format, answer) == calls);
    }
    for (const std::string& answer : c.refused)
      BOOST_TEST(!accepts_bytes(*grammar, answer), answer);
  }
}

}  // namespace
}  // namespace troupe
