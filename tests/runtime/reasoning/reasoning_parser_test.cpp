#include "runtime/reasoning/reasoning_parser.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

struct Split {
  std::string reasoning;
  std::string answer;
  bool operator==(const Split&) const = default;
};

Split split(const ReasoningFormat& format, const std::vector<std::string_view>& pieces,
            bool is_complete = true) {
  ReasoningParser parser(format);
  Split result;
  for (const std::string_view piece : pieces) parser.feed(piece, result.reasoning, result.answer);
  if (is_complete) parser.finish(result.reasoning, result.answer);
  return result;
}

std::vector<Json> goldens() {
  std::ifstream file(TROUPE_GOLDEN_DIR "/tool_calls/reasoning.jsonl");
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
  return rows;
}

BOOST_AUTO_TEST_CASE(golden_answers_are_split_wherever_they_are_cut) {
  for (const Json& row : goldens()) {
    BOOST_TEST_CONTEXT(row["format"] << ": " << row["name"]) {
      const ReasoningFormat* format = find_reasoning_format(row["format"].get<std::string>());
      BOOST_REQUIRE(format != nullptr);
      const std::string text = row["text"];
      const std::string_view view = text;
      const Split expected{row["reasoning"], row["content"]};
      BOOST_TEST(split(*format, {text}).reasoning == expected.reasoning);
      BOOST_TEST(split(*format, {text}).answer == expected.answer);
      for (std::size_t first = 0; first <= text.size(); ++first) {
        for (std::size_t second = first; second <= text.size(); ++second) {
          const Split got = split(
              *format,
              {view.substr(0, first), view.substr(first, second - first), view.substr(second)});
          if (got != expected) BOOST_ERROR("cut at " << first << " and " << second);
        }
        std::vector<std::string_view> bytes;
        for (std::size_t i = 0; i < first; ++i) bytes.push_back(view.substr(i, 1));
        BOOST_TEST(
            (split(*format, bytes, false) == split(*format, {view.substr(0, first)}, false)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_format_has_a_golden_answer) {
  const std::vector<Json> rows = goldens();
  for (const ReasoningFormat& format : reasoning_formats()) {
    BOOST_TEST(std::ranges::any_of(rows,
                                   [&](const Json& row) {
                                     return find_reasoning_format(
                                                row["format"].get<std::string>()) == &format;
                                   }),
               format.name);
  }
}

BOOST_AUTO_TEST_CASE(a_chat_template_tells_whether_the_answer_begins_with_reasoning) {
  BOOST_TEST(!detect_reasoning_format("{{ messages }}").has_value());
  const auto given = detect_reasoning_format(
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}");
  BOOST_REQUIRE(given.has_value());
  BOOST_TEST(given->starts_inside);
  const auto written = detect_reasoning_format(
      "{% if add_generation_prompt %}{{ 'assistant' }}{% if enable_thinking is false %}"
      "{{ '<think>\\n\\n</think>' }}{% endif %}{% endif %}");
  BOOST_REQUIRE(written.has_value());
  BOOST_TEST(!written->starts_inside);
  BOOST_TEST(written->switch_variable == "enable_thinking");
}

}  // namespace
}  // namespace troupe
