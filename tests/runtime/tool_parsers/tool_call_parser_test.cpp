#include "runtime/tool_parsers/tool_call_parser.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/tool_parsers/answer_parser.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

struct Goldens {
  std::shared_ptr<const ToolDeclarations> tools;
  std::vector<Json> cases;
};

const Goldens& goldens() {
  static const Goldens all = [] {
    std::ifstream file(TROUPE_GOLDEN_DIR "/tool_calls/answers.jsonl");
    Goldens goldens;
    for (std::string line; std::getline(file, line);) {
      Json row = Json::parse(line);
      if (row.contains("tools")) {
        goldens.tools = std::make_shared<const ToolDeclarations>(
            ToolDeclarations::parse(row["tools"].dump()).value());
      } else {
        goldens.cases.push_back(std::move(row));
      }
    }
    return goldens;
  }();
  return all;
}

/// The deltas of an answer, joined.
struct Answer {
  std::string content;
  std::vector<ToolCallDelta> calls;
  bool operator==(const Answer&) const = default;

  void add(const AnswerDelta& delta) {
    content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.name.empty()) {
        BOOST_REQUIRE(call.index == static_cast<std::int32_t>(calls.size()));
        calls.push_back(call);
      } else {
        BOOST_REQUIRE(!call.arguments.empty());
        calls.at(static_cast<std::size_t>(call.index)).arguments += call.arguments;
      }
    }
  }
};

struct Run {
  Answer before_the_end;
  Answer whole;
};

Run parse(const ToolFormat& format, const std::vector<std::string_view>& pieces) {
  ToolCallParser parser(format, goldens().tools);
  Run run;
  AnswerDelta delta;
  for (const std::string_view piece : pieces) {
    delta = {};
    parser.feed(piece, delta);
    run.before_the_end.add(delta);
  }
  run.whole = run.before_the_end;
  delta = {};
  parser.finish(delta);
  run.whole.add(delta);
  return run;
}

std::vector<std::string_view> by_bytes(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (std::size_t i = 0; i < text.size(); ++i) pieces.push_back(text.substr(i, 1));
  return pieces;
}

const ToolFormat& format_of(const Json& row) {
  const ToolFormat* format = find_tool_format(row["format"].get<std::string>());
  BOOST_REQUIRE(format != nullptr);
  return *format;
}

BOOST_AUTO_TEST_CASE(golden_answers_give_their_content_and_their_calls) {
  for (const Json& row : goldens().cases) {
    BOOST_TEST_CONTEXT(row["format"] << ": " << row["name"]) {
      const std::string text = row["text"];
      const Answer answer = parse(format_of(row), {text}).whole;
      BOOST_TEST(answer.content == row["content"].get<std::string>());
      BOOST_REQUIRE(answer.calls.size() == row["calls"].size());
      for (std::size_t i = 0; i < answer.calls.size(); ++i) {
        const Json& expected = row["calls"][i];
        BOOST_TEST(answer.calls[i].name == expected["name"].get<std::string>());
        BOOST_TEST(Json::parse(answer.calls[i].arguments, nullptr, false).dump() ==
                   expected["arguments"].dump());
        BOOST_TEST(answer.calls[i].model_id == expected.value("id", ""));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_format_has_a_golden_answer) {
  for (const ToolFormat& format : tool_formats()) {
    BOOST_TEST(std::ranges::any_of(goldens().cases,
                                   [&](const Json& row) { return row["format"] == format.name; }),
               format.name);
  }
}

BOOST_AUTO_TEST_CASE(answers_do_not_depend_on_where_they_are_cut) {
  for (const Json& row : goldens().cases) {
    const std::string text = row["text"];
    const std::string_view view = text;
    const ToolFormat& format = format_of(row);
    BOOST_TEST_CONTEXT(row["format"] << ": " << row["name"]) {
      const Answer expected = parse(format, {text}).whole;
      BOOST_TEST((parse(format, by_bytes(text)).whole == expected));
      const std::size_t step = testing::kSanitized ? 7 : 1;
      for (std::size_t first = 0; first <= text.size(); first += step) {
        for (std::size_t second = first; second <= text.size(); second += step) {
          const Answer answer =
              parse(format, {view.substr(0, first), view.substr(first, second - first),
                             view.substr(second)})
                  .whole;
          if (answer != expected) BOOST_ERROR("cut at " << first << " and " << second);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_given_out_is_a_function_of_the_text_so_far) {
  for (const Json& row : goldens().cases) {
    const std::string text = row["text"];
    const std::string_view view = text;
    const ToolFormat& format = format_of(row);
    for (std::size_t size = 0; size <= text.size(); ++size) {
      const Run at_once = parse(format, {view.substr(0, size)});
      const Run by_byte = parse(format, by_bytes(view.substr(0, size)));
      if (at_once.before_the_end != by_byte.before_the_end || at_once.whole != by_byte.whole)
        BOOST_ERROR(row["format"] << ": " << row["name"] << ", the first " << size << " bytes");
    }
  }
}

BOOST_AUTO_TEST_CASE(no_part_of_a_marker_is_streamed) {
  for (const Json& row : goldens().cases) {
    const std::string text = row["text"];
    const std::string expected = row["content"];
    for (std::size_t size = 0; size <= text.size(); ++size) {
      const Run run = parse(format_of(row), {std::string_view(text).substr(0, size)});
      if (!expected.starts_with(run.before_the_end.content))
        BOOST_ERROR(row["format"] << ": " << row["name"] << ", the first " << size << " bytes");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_call_at_the_length_limit_stays_as_it_stands) {
  const ToolFormat& format = *find_tool_format("hermes");
  const Answer answer =
      parse(format, {"<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"ab"}).whole;
  BOOST_REQUIRE(answer.calls.size() == 1u);
  BOOST_TEST(answer.calls[0].arguments == "{\"query\": \"ab");
  BOOST_TEST(answer.content == "");
  BOOST_TEST(parse(format, {"a <tool_"}).whole.content == "a <tool_");
  BOOST_TEST(parse(format, {"a<tool_call>\n{\"na"}).whole.content == "a");
}

BOOST_AUTO_TEST_CASE(strings_among_parameters_are_streamed) {
  ToolCallParser parser(*find_tool_format("qwen3_coder"), goldens().tools);
  AnswerDelta delta;
  parser.feed("<tool_call>\n<function=search>\n<parameter=query>\none\ntwo", delta);
  BOOST_REQUIRE(delta.tool_calls.size() == 1u);
  BOOST_TEST(delta.tool_calls[0].arguments == "{\"query\": \"one\\ntwo");
}

BOOST_AUTO_TEST_CASE(formats_are_found_by_their_names_and_by_chat_templates) {
  BOOST_TEST(find_tool_format("qwen3_json")->name == "hermes");
  BOOST_TEST(find_tool_format("qwen3_xml")->name == "qwen3_coder");
  BOOST_TEST((find_tool_format("nothing") == nullptr));
  BOOST_TEST((detect_tool_format("{% for m in messages %}{{ m.content }}{% endfor %}") == nullptr));
  BOOST_TEST(detect_tool_format("<tool_call>\\n{\"name\": ")->name == "hermes");
  BOOST_TEST(detect_tool_format("<tool_call>\\n<function=f>")->name == "qwen3_coder");
}

BOOST_AUTO_TEST_CASE(harmony_has_markers_also_around_answers_without_tools) {
  const ToolFormat* const texts = find_tool_format("openai")->without_tools;
  BOOST_REQUIRE(texts != nullptr);
  ToolCallParser parser(*texts, nullptr);
  AnswerDelta delta;
  parser.feed("<|start|>assistant<|channel|>final<|message|>Hello <|chan", delta);
  parser.feed("nel| there<|return|>", delta);
  parser.finish(delta);
  BOOST_TEST(delta.content == "Hello <|channel| there");
  BOOST_TEST(delta.tool_calls.empty());
  BOOST_TEST((find_tool_format("hermes")->without_tools == nullptr));
}

BOOST_AUTO_TEST_CASE(a_forced_function_gets_the_whole_text_as_its_arguments) {
  AnswerFormat format;
  format.forced_function = "search";
  AnswerParser parser(format);
  Answer answer;
  answer.add(parser.feed("{\"query\""));
  answer.add(parser.feed(": 1}"));
  answer.add(parser.finish());
  BOOST_REQUIRE(answer.calls.size() == 1u);
  BOOST_TEST(answer.calls[0].name == "search");
  BOOST_TEST(answer.calls[0].arguments == "{\"query\": 1}");
}

BOOST_AUTO_TEST_CASE(calls_are_looked_for_in_the_answer_only) {
  AnswerFormat format;
  format.reasoning = *find_reasoning_format("deepseek_r1");
  format.tools = find_tool_format("hermes");
  format.declarations = goldens().tools;
  const std::string call = "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>";
  AnswerParser parser(format);
  AnswerDelta delta = parser.feed("I could say " + call + ".</think>" + call + call);
  BOOST_TEST(delta.reasoning == "I could say " + call + ".");
  BOOST_TEST(delta.content == "");
  BOOST_TEST(delta.tool_calls.size() == 2u);

  format.parallel_tool_calls = false;
  AnswerParser single(format);
  delta = single.feed("Hm.</think>" + call + call);
  BOOST_TEST(delta.tool_calls.size() == 1u);
  BOOST_TEST(single.has_calls());
}

}  // namespace
}  // namespace troupe
