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
  std::vector<std::string> special_tokens = {};  ///< of the vocabulary
};

void check_held(const HeldCase& c, const CallRule& rule) {
  BOOST_TEST_INFO_SCOPE(c.format);
  const ToolFormat* const format = find_tool_format(c.format);
  const auto tag = calls_tag(*format, kHeldTools, rule).value();
  BOOST_REQUIRE(tag.has_value());
  const auto grammar = compile_for_bytes(structural_tag_grammar(*tag, {}, {}, c.special_tokens));
  for (const auto& [answer, calls] : c.taken) {
    BOOST_TEST(accepts_bytes(*grammar, with_marks(answer, c.special_tokens)), answer);
    BOOST_TEST(calls_of(*format, answer) == calls);
  }
  for (const std::string& answer : c.refused)
    BOOST_TEST(!accepts_bytes(*grammar, with_marks(answer, c.special_tokens)), answer);
}

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
    check_held(c, {.required = true});
  }
}

const std::vector<std::string> kDeepseekTokens = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                                  "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
                                                  "<｜tool▁sep｜>"};

BOOST_AUTO_TEST_CASE(forced_calls_are_held_where_markers_are_special_tokens) {
  const std::vector<HeldCase> cases = {
      {"mistral",
       {{R"([TOOL_CALLS]stop[ARGS]{}[TOOL_CALLS]find[ARGS]{"text": "a", "limit": 1})",
         R"(stop{}find{"limit":1,"text":"a"})"},
        {R"([TOOL_CALLS][{"name": "stop", "arguments": {}}, {"name": "stop", "arguments": {}}])",
         "stop{}stop{}"},
        {"[TOOL_CALLS]stop[CALL_ID]a1B2c3D4e[ARGS]{}", "stop{}"}},
       {"[TOOL_CALLS]go[ARGS]{}", "[TOOL_CALLS]stop", "stop[ARGS]{}", "text",
        R"([TOOL_CALLS]find[ARGS]{"text": "a", "limit": 21})"},
       {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
      {"deepseek_v3",
       {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```"
         "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
         "{\"text\": \"a\", \"limit\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         R"(stop{}find{"limit":2,"text":"a"})"}},
       {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"},
       kDeepseekTokens},
      {"deepseek_v31",
       {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
         "<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "stop{}stop{}"}},
       {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>"},
       kDeepseekTokens},
      {"deepseek_v32",
       {{"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n"
         "<｜DSML｜parameter name=\"text\" string=\"true\">12</｜DSML｜parameter>\n"
         "<｜DSML｜parameter name=\"limit\" string=\"false\">3</｜DSML｜parameter>\n"
         "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
         R"(find{"limit":3,"text":"12"})"}},
       {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n"
        "<｜DSML｜parameter name=\"text\" string=\"false\">12</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"limit\" string=\"false\">3</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
       {"｜DSML｜"}},
      {"minimax_m2",
       {{"<minimax:tool_call>\n<invoke name=\"find\">\n<parameter name=\"text\">a b</parameter>\n"
         "<parameter name=\"limit\">3</parameter>\n</invoke>\n</minimax:tool_call>",
         R"(find{"limit":3,"text":"a b"})"}},
       {"<minimax:tool_call>\n</minimax:tool_call>"},
       {"<minimax:tool_call>", "</minimax:tool_call>"}},
      {"kimi_k2",
       {{"<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.stop:12"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
         "stop{}stop{}"}},
       {"<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:x"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
       {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>"}},
      {"granite",
       {{R"(<|tool_call|>[{"name": "stop", "arguments": {}}])", "stop{}"},
        {"<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>", "stop{}"}},
       {"<|tool_call|>[]"},
       {"<|tool_call|>", "<tool_call>", "</tool_call>"}},
      {"openai",
       {{R"(<|channel|>commentary to=functions.find <|constrain|>json<|message|>)"
         R"({"text": "a", "limit": 1}<|call|>)",
         R"(find{"limit":1,"text":"a"})"}},
       {"<|channel|>final<|message|>x<|return|>"},
       {"<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|start|>", "<|return|>"}},
      {"lfm2",
       {{"<|tool_call_start|>[stop(), stop()]<|tool_call_end|>", "stop{}stop{}"}},
       {"<|tool_call_start|>[]<|tool_call_end|>"},
       {"<|tool_call_start|>", "<|tool_call_end|>"}},
      {"phi4_mini_json",
       {{R"(functools[{"name": "stop", "arguments": {}}])", "stop{}"},
        {R"(<|tool_call|>[{"name": "stop", "arguments": {}}]<|/tool_call|>)", "stop{}"}},
       {"functools[]"},
       {"<|tool_call|>", "<|/tool_call|>"}},
      {"llama3_json",
       {{R"({"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}})",
         "stop{}stop{}"}},
       {R"({"name": "stop", "arguments": {}})", R"(<|python_tag|>{"name": "stop")"},
       {"<|python_tag|>"}}};
  for (HeldCase c : cases) {
    check_held(c, {.required = true});
    const auto grammar = compile_for_bytes(structural_tag_grammar(
        *calls_tag(*find_tool_format(c.format), kHeldTools, {.required = true}).value(), {}, {},
        c.special_tokens));
    // A marker that is spelled by other tokens is none.
    const std::string& plain = c.taken.front().first;
    BOOST_TEST(accepts_bytes(*grammar, plain) == (plain == with_marks(plain, c.special_tokens)));
    c.special_tokens.clear();  // of another model, in whose vocabulary markers are text
    check_held(c, {.required = true});
  }
}

BOOST_AUTO_TEST_CASE(calls_that_have_begun_are_held_as_the_level_says) {
  using enum ToolStrictLevel;
  HeldCase c{"mistral",
             {{"Let me see.[TOOL_CALLS]stop[ARGS]{}", "Let me see.stop{}"},
              {R"([TOOL_CALLS]find[ARGS]{"limit": "many"})", R"(find{"limit":"many"})"},
              {"no call", "no call"}},
             {"[TOOL_CALLS]go[ARGS]{}", "[TOOL_CALLS]find[ARGS]12", "x[TOOL_CALLS]"},
             {"[TOOL_CALLS]", "[ARGS]", "</s>"}};
  check_held(c, {.strict_level = kFunction});
  c.refused.push_back(c.taken[1].first);
  c.taken.erase(c.taken.begin() + 1);
  check_held(c, {.strict_level = kParameter});
  HeldCase kimi{"kimi_k2",
                {{"a<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0"
                  "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                  "astop{}"}},
                {"<|tool_calls_section_begin|><|tool_calls_section_end|>"},
                {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                 "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"}};
  check_held(kimi, {.strict_level = kFunction});
  BOOST_TEST((find_tool_strict_level("parameter") == kParameter));
  BOOST_TEST(!find_tool_strict_level("strict").has_value());
}

BOOST_AUTO_TEST_CASE(an_answer_that_begins_as_a_call_is_held_where_no_marker_tells_it) {
  using enum ToolStrictLevel;
  const std::vector<HeldCase> cases = {
      {"pythonic",
       {{"[stop(), find(text=\"a\", limit=3)]", R"(stop{}find{"limit":3,"text":"a"})"},
        {" [stop()]", "stop{}"},
        {"no call: [stop]", "no call: [stop]"},
        {"[1, 2]", "[1, 2]"},
        {"[go(x=1)]", "[go(x=1)]"}},
       {"[find(text=\"a\")]", "[find(text=\"a\", limit=21)]", "[stop()", "[stop(x=1)]",
        "[ stop ()] or so"}},
      {"llama3_json",
       {{R"({"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}})",
         "stop{}stop{}"},
        {R"({"name":"find","arguments":{"text": "a", "limit": 2}})",
         R"(find{"limit":2,"text":"a"})"},
        {R"(Well.<|python_tag|>{"name": "stop", "parameters": {}})", "Well.stop{}"},
        {R"({"name": "Ann", "age": 7})", R"({"name": "Ann", "age": 7})"},
        {"{}", "{}"},
        {"some text", "some text"}},
       {R"({"name": "find", "parameters": {"text": "a"}})", R"({"name": "stop")",
        R"({"name": "stop", "parameters": {}} and more)", R"( {"name" :"stop", "x": 1})",
        R"(<|python_tag|>{"name": "find", "parameters": {}})", "x<|python_tag|>y"},
       {"<|python_tag|>"}},
      {"openai",
       {{R"(<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>commentary )"
         R"(to=functions.find <|constrain|>json<|message|>{"text": "a", "limit": 1}<|call|>)",
         R"(Well.find{"limit":1,"text":"a"})"},
        {R"(<|start|>assistant to=functions.stop<|channel|>commentary<|message|>{}<|call|>)",
         "stop{}"},
        {"<|channel|>final<|message|>to=functions.go<|return|>", "to=functions.go"}},
       {R"(<|channel|>commentary to=functions.find<|message|>{"text": "a"}<|call|>)",
        "<|channel|>commentary to=functions.go<|message|>{}<|call|>",
        "<|start|>assistant to=functions.find<|channel|>commentary<|message|>{}<|call|>"},
       {"<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|start|>", "<|return|>",
        "<|end|>"}},
      {"llama4_pythonic",
       {{"[stop()]", "stop{}"},
        {"A<|python_start|>[stop()]<|python_end|>", "Astop{}"},
        {"text", "text"}},
       {"[find()]", "<|python_start|>[find()]<|python_end|>"},
       {"<|python_start|>", "<|python_end|>"}}};
  for (const HeldCase& c : cases) check_held(c, {.strict_level = kParameter});
  // Their format alone, and one call alone.
  check_held({"llama3_json",
              {{R"({"name": "find", "parameters": {"text": 1}})", R"(find{"text":1})"}},
              {R"({"name": "find", "parameters": 12})"},
              {"<|python_tag|>"}},
             {.strict_level = kFunction});
  check_held({"pythonic", {{"[stop()]", "stop{}"}}, {"[stop(), stop()]"}},
             {.parallel = false, .strict_level = kParameter});
  BOOST_TEST(has_calls_at_start(*find_tool_format("llama3_json")));
  BOOST_TEST(!has_calls_at_start(*find_tool_format("openai")));
  BOOST_TEST(!has_calls_at_start(*find_tool_format("hermes")));
}

BOOST_AUTO_TEST_CASE(some_of_the_tools_are_chosen_by_name) {
  const std::string one = only_tools(kHeldTools, {"stop"}).value();
  BOOST_TEST(one.find("find") == std::string::npos);
  BOOST_TEST(one.find("stop") != std::string::npos);
  // All of them, in any order, are the same text.
  BOOST_TEST(only_tools(kHeldTools, {"stop", "find", "stop"}).value() == kHeldTools);
  const auto wrong = only_tools(kHeldTools, {"stop", "go"});
  BOOST_REQUIRE(!wrong.ok());
  BOOST_TEST(wrong.error().message == "tool_choice allows go, which is not in tools");
  BOOST_TEST(wrong.error().param == "tool_choice");
}

BOOST_AUTO_TEST_CASE(a_vocabulary_tells_whether_markers_are_special_tokens) {
  const ToolFormat& hermes = *find_tool_format("hermes");
  const std::vector<std::string> others = {"<|im_start|>", "<|im_end|>", "</s>"};
  BOOST_TEST(format_with(hermes, others) == &hermes);
  const ToolFormat& special = *format_with(hermes, std::vector<std::string>{"<tool_call>"});
  BOOST_TEST(special.has_special_tokens);
  BOOST_TEST(special.name == "hermes");
  BOOST_TEST(!hermes.has_special_tokens);
}

}  // namespace
}  // namespace troupe
