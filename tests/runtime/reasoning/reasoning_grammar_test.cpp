#include "runtime/reasoning/reasoning_grammar.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "runtime/structured_output/structured_grammar.hpp"
#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

using Kind = StructuredOutputKind;

StructuredOutputsParams structure(Kind kind, const std::vector<std::string>& texts) {
  StructuredOutputsParams made{.kind = kind};
  made.texts = texts;
  return made;
}

BOOST_AUTO_TEST_CASE(every_structure_begins_after_free_reasoning) {
  struct Case {
    StructuredOutputsParams structure;
    std::string answer;
  };
  const std::vector<Case> cases = {
      {structure(Kind::kJsonSchema, {R"({"type":"object","properties":{"b":{"type":"integer"},
                                         "a":{"type":"null"}},"required":["b","a"]})"}),
       R"({"b": 1, "a": null})"},
      {structure(Kind::kJsonObject, {}), R"({"x": []})"},
      {structure(Kind::kRegex, {"[ab]{2}"}), "ba"},
      {structure(Kind::kChoice, {"yes", "no"}), "no"},
      {structure(Kind::kGrammar, {R"(root ::= "g" root | "h")"}), "ggh"},
      {structure(Kind::kStructuralTag, {R"({"format":{"type":"const_string","value":"c"}})"}), "c"},
      {structure(Kind::kStructuralTag, {R"({"triggers":["<t>"],"structures":[{"begin":"<t>",
                                            "schema":{"type":"integer"},"end":"</t>"}]})"}),
       "so <t>12</t>"}};
  for (const auto& [plain, answer] : cases) {
    BOOST_TEST_CONTEXT(answer) {
      StructuredOutputsParams inside = plain, optional = plain;
      BOOST_REQUIRE(begin_with_reasoning(inside, *find_reasoning_format("deepseek_r1")));
      const auto held = compile_for_bytes(structured_grammar(inside));
      BOOST_TEST(accepts_bytes(*held, "hm, {\"b\": 2}?\n</think>\n\n" + answer));
      BOOST_TEST(accepts_bytes(*held, "<think>hm</think>" + answer));
      BOOST_TEST(!accepts_bytes(*held, "hm"));
      BOOST_REQUIRE(begin_with_reasoning(optional, *find_reasoning_format("glm45")));
      const auto decides = compile_for_bytes(structured_grammar(optional));
      BOOST_TEST(accepts_bytes(*decides, answer));
      BOOST_TEST(accepts_bytes(*decides, "<think>hm</think>\n" + answer));
    }
  }
}

BOOST_AUTO_TEST_CASE(calls_do_not_begin_in_the_reasoning) {
  StructuredOutputsParams calls = structure(Kind::kRegex, {"<tool_call>1</tool_call>"});
  BOOST_REQUIRE(begin_with_reasoning(calls, *find_reasoning_format("qwen3")));
  const auto held = compile_for_bytes(structured_grammar(calls));
  BOOST_TEST(accepts_bytes(*held, "hm</think>\n<tool_call>1</tool_call>"));
  BOOST_TEST(!accepts_bytes(*held, "hm</think>\u3000<tool_call>1</tool_call>"));  // a wide blank
  BOOST_TEST(!accepts_bytes(*held, "<tool_call>2</tool_call></think><tool_call>1</tool_call>"));
}

BOOST_AUTO_TEST_CASE(an_answer_is_of_its_structure_or_calls) {
  const std::string calls =
      R"({"format":{"type":"const_string","value":"<call>","special_tokens":true}})";
  const std::vector<std::string> special{"<call>",      "<|channel|>", "<|start|>", "<|end|>",
                                         "<|message|>", "[THINK]",     "[/THINK]"};
  const auto accepts = [&](const std::optional<ReasoningFormat>& reasoning,
                           const std::string& text) {
    StructuredOutputsParams what = structure(Kind::kRegex, {"[ab]+"});
    BOOST_REQUIRE(or_calls(what, reasoning, calls));
    if (reasoning) BOOST_REQUIRE(begin_with_reasoning(what, *reasoning, /*is_text=*/false));
    const auto grammar = compile_for_bytes(structured_grammar(what, {}, special));
    return accepts_bytes(*grammar, with_marks(text, special));
  };
  for (const char* answer : {"ab", "<call>"}) BOOST_TEST(accepts(std::nullopt, answer), answer);
  for (const char* answer : {"", "c", "ab<call>", "<call>a"})
    BOOST_TEST(!accepts(std::nullopt, answer), answer);
  const ReasoningFormat& mistral = *find_reasoning_format("mistral");
  for (const char* answer : {"ab", "[THINK]why?[/THINK]ab", "[THINK]why?[/THINK]<call>", "<call>"})
    BOOST_TEST(accepts(mistral, answer), answer);
  // A marker tells texts from calls.
  const ReasoningFormat& harmony = *find_reasoning_format("openai_gptoss");
  const std::string analysis = "<|channel|>analysis<|message|>why?<|end|><|start|>assistant";
  BOOST_TEST(accepts(harmony, analysis + "<|channel|>final<|message|>ab"));
  BOOST_TEST(accepts(harmony, analysis + "<call>"));
  BOOST_TEST(!accepts(harmony, analysis + "ab"));
  BOOST_TEST(!accepts(harmony, analysis + "<|channel|>final<|message|><call>"));
  StructuredOutputsParams wrong = structure(Kind::kJsonSchema, {"{"});
  BOOST_TEST(!or_calls(wrong, std::nullopt, calls));
  BOOST_TEST((wrong.kind == Kind::kJsonSchema));
}

BOOST_AUTO_TEST_CASE(reasoning_between_special_tokens_is_free_and_what_follows_is_held) {
  const std::vector<std::string> special{"[THINK]",   "[/THINK]", "<|channel|>",
                                         "<|start|>", "<|end|>",  "<|message|>"};
  const auto held = [&](const char* format, bool is_text) {
    StructuredOutputsParams what = structure(Kind::kRegex, {"[ab]+"});
    BOOST_REQUIRE(begin_with_reasoning(what, *find_reasoning_format(format), is_text));
    return compile_for_bytes(structured_grammar(what, {}, special));
  };
  const auto accepts = [&](CompiledGrammar& grammar, const std::string& text) {
    return accepts_bytes(grammar, with_marks(text, special));
  };
  const auto mistral = held("mistral", true);
  BOOST_TEST(accepts(*mistral, "ab"));
  BOOST_TEST(accepts(*mistral, "[THINK]why c?[/THINK]\nab"));
  BOOST_TEST(!accepts(*mistral, "[THINK]why c?[/THINK]c"));
  BOOST_TEST(!accepts(*mistral, "[THINK]ab"));
  const std::string analysis = "<|channel|>analysis<|message|>why?<|end|><|start|>assistant";
  const auto text = held("openai_gptoss", true);
  for (const std::string& before : {std::string(), analysis, analysis + analysis}) {
    BOOST_TEST(accepts(*text, before + "<|channel|>final<|message|>ab"), before);
    BOOST_TEST(!accepts(*text, before + "<|channel|>final<|message|>c"), before);
    BOOST_TEST(!accepts(*text, before + "ab"), before);
  }
  const auto calls = held("openai_gptoss", false);
  BOOST_TEST(accepts(*calls, analysis + "ab"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_held_stays_as_it_is) {
  StructuredOutputsParams wrong = structure(Kind::kJsonSchema, {"{"});
  BOOST_TEST(!begin_with_reasoning(wrong, *find_reasoning_format("qwen3")));
}

}  // namespace
}  // namespace troupe
