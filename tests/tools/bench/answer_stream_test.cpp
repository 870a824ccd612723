#include "tools/bench/answer_stream.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

namespace troupe::tools {
namespace {

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  EventStream stream;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    stream.feed(piece, [&](std::string_view data) { events.emplace_back(data); });
  }
  return events;
}

std::string completion(const std::string& text, const std::string& reason = "null") {
  return R"({"choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" + reason + "}]}";
}
std::string chat(const std::string& delta, const std::string& reason = "null") {
  return R"({"choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":)" + reason + "}]}";
}

BOOST_AUTO_TEST_CASE(a_stream_gives_the_same_events_however_it_is_cut) {
  const std::string text =
      ": comment\n\ndata: one\n\nevent: x\r\ndata:two\r\n\r\ndata: a\ndata: b\n\ndata: unfinished";
  const std::vector<std::string> expected = {"one", "two", "a\nb"};
  BOOST_TEST(events_of({text}) == expected, boost::test_tools::per_element());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    BOOST_TEST(events_of({text.substr(0, cut), text.substr(cut)}) == expected,
               boost::test_tools::per_element());
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  BOOST_TEST(events_of(bytes) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_first_text_is_the_first_token_and_later_chunks_end_gaps) {
  AnswerRecorder recorder;
  recorder.on_event(chat(R"({"role":"assistant","content":""})"), 0.25);
  recorder.on_event(chat(R"({"content":"Hel"})"), 0.5);
  recorder.on_event(chat(R"({"content":""})"), 0.75);
  recorder.on_event(chat(R"({"content":"lo"})", "\"stop\""), 1.25);
  recorder.on_event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}})", 1.5);
  recorder.on_event("[DONE]", 1.75);
  const RequestRecord record = std::move(recorder).finish();
  BOOST_TEST(record.success);
  BOOST_TEST(record.first_token == 0.5);
  BOOST_TEST(record.latency == 1.25);
  BOOST_TEST(record.token_latencies == (std::vector<double>{0.25, 0.5}),
             boost::test_tools::per_element());
  BOOST_TEST(record.num_prompt_tokens == 7);
  BOOST_TEST(record.num_output_tokens == 9);
  BOOST_TEST(record.text == "Hello");
}

BOOST_AUTO_TEST_CASE(without_usage_chunks_count_as_tokens) {
  AnswerRecorder recorder;
  recorder.on_event(completion("a"), 1);
  recorder.on_event(completion("b", "\"length\""), 2);
  const RequestRecord record = std::move(recorder).finish();
  BOOST_TEST(record.success);
  BOOST_TEST(record.num_output_tokens == 2);
}

BOOST_AUTO_TEST_CASE(tokens_of_a_completion_need_no_text) {
  AnswerRecorder recorder;
  recorder.on_event(completion(""), 1);
  recorder.on_event(completion(""), 1.5);
  recorder.on_event(completion("", "\"length\""), 2.5);
  const RequestRecord record = std::move(recorder).finish();
  BOOST_TEST(record.first_token == 1);
  BOOST_TEST(record.token_latencies == (std::vector<double>{0.5, 1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_answer_without_text_is_timed_by_its_end) {
  AnswerRecorder recorder;
  recorder.on_event(completion("", "\"stop\""), 1.5);
  const RequestRecord record = std::move(recorder).finish();
  BOOST_TEST(record.success);
  BOOST_TEST(record.first_token == 1.5);
  BOOST_TEST(record.latency == 1.5);
  BOOST_TEST(record.token_latencies.empty());
}

BOOST_AUTO_TEST_CASE(an_answer_that_breaks_off_or_brings_an_error_has_failed) {
  AnswerRecorder broken;
  broken.on_event(completion("a"), 1);
  BOOST_TEST(!std::move(broken).finish().success);

  AnswerRecorder failed;
  failed.on_event(completion("a"), 1);
  failed.on_event(R"({"error":{"message":"no memory","code":500}})", 2);
  const RequestRecord record = std::move(failed).finish();
  BOOST_TEST(!record.success);
  BOOST_TEST(record.error == "no memory");

  for (const char* event : {"{", "[]", R"({"error":"text"})"}) {
    AnswerRecorder odd;
    odd.on_event(event, 1);
    odd.on_event(completion("a", "\"stop\""), 2);
    BOOST_TEST(!std::move(odd).finish().success, event);
  }
  for (const char* event : {R"({"choices":3})", R"({"choices":[7]})",
                            R"({"choices":[{"delta":5}]})", R"({"usage":[1]})"}) {
    AnswerRecorder odd;
    odd.on_event(event, 1);
    odd.on_event(completion("a", "\"stop\""), 2);
    BOOST_TEST(std::move(odd).finish().success, event);
  }
}

}  // namespace
}  // namespace troupe::tools
