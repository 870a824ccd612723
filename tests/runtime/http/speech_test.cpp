// Requests to write down sounds, and the forms of their answers.
#include "runtime/http/speech.hpp"

#include <boost/test/unit_test.hpp>

#include "tests/runtime/http/session_fixture.hpp"

namespace troupe {
namespace {

std::string form_of(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string body;
  for (const auto& [name, value] : fields)
    body += "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"" +
            (name == "file" ? "; filename=\"a.wav\"" : "") + "\r\n\r\n" + value + "\r\n";
  return body + "--b--\r\n";
}

Result<SpeechRequest> parse(const std::vector<std::pair<std::string, std::string>>& fields) {
  return parse_speech_request("multipart/form-data; boundary=b", form_of(fields), false);
}

BOOST_AUTO_TEST_CASE(a_form_is_read_and_what_is_wrong_with_it_is_named) {
  const auto plain = parse({{"file", "RIFF"}, {"model", "whisper"}});
  BOOST_REQUIRE(plain.ok());
  BOOST_TEST(plain->file == "RIFF");
  BOOST_TEST(plain->language == "en");
  BOOST_TEST(plain->params.temperature == 0.0f);
  BOOST_TEST(plain->params.skip_special_tokens);
  const auto timed = parse({{"response_format", "srt"},
                            {"temperature", "0.5"},
                            {"max_completion_tokens", "7"},
                            {"prompt", "Names: Ada"},
                            {"language", "de"},
                            {"timestamp_granularities[]", "segment"},
                            {"file", "x"}});
  BOOST_REQUIRE(timed.ok());
  BOOST_TEST((timed->format == SpeechFormat::kSrt));
  BOOST_TEST(timed->params.temperature == 0.5f);
  BOOST_TEST(timed->params.max_tokens.value() == 7);
  BOOST_TEST(timed->previous_text == "Names: Ada");
  BOOST_TEST(!timed->params.skip_special_tokens);
  for (const auto& [field, value] : {std::pair<std::string, std::string>{"response_format", "xml"},
                                     {"temperature", "warm"},
                                     {"stream", "maybe"},
                                     {"timestamp_granularities[]", "word"}}) {
    const auto refused = parse({{field, value}, {"file", "x"}});
    BOOST_REQUIRE(!refused.ok());
    BOOST_TEST(field.starts_with(refused.error().param), refused.error().message);
  }
  BOOST_TEST(parse({{"model", "x"}}).error().param == "file");
  BOOST_TEST(parse({{"file", ""}}).error().message == "file is empty");
  BOOST_TEST(parse({{"file", "x"}, {"stream", "true"}, {"response_format", "vtt"}}).error().param ==
             "stream");
  BOOST_TEST(!parse_speech_request("application/json", "{}", false).ok());
}

BOOST_AUTO_TEST_CASE(texts_with_times_become_segments) {
  const auto segments =
      speech_segments("<|0.00|> Hello,<|1.20|><|1.20|> world<|en|>!<|2.50|> And", 10, 13);
  BOOST_REQUIRE(segments.size() == 3u);
  BOOST_TEST((segments[0] == SpeechSegment{10, 11.2, " Hello,"}));
  BOOST_TEST((segments[1] == SpeechSegment{11.2, 12.5, " world!"}));
  BOOST_TEST((segments[2] == SpeechSegment{12.5, 13, " And"}));
  BOOST_TEST(speech_segments("no times <| here", 0, 2).front().text == "no times <| here");
  BOOST_TEST(speech_segments("<|0.00|><|1.00|>", 0, 2).empty());
}

BOOST_AUTO_TEST_CASE(answers_have_the_form_that_was_asked_for) {
  SpeechRequest request;
  request.starts = {0, 3661.5};
  request.seconds = 3663.5;
  const auto body = [&](SpeechFormat format, const std::vector<std::string>& texts) {
    request.format = format;
    return speech_body(request, texts);
  };
  const std::vector<std::string> timed = {"<|0.00|> Hello<|1.50|>", "<|0.00|> again<|2.00|>"};
  BOOST_TEST(body(SpeechFormat::kJson, {" Hello", " again"}).text ==
             R"({"text":" Hello again","usage":{"type":"duration","seconds":3664}})");
  BOOST_TEST(body(SpeechFormat::kText, {" Hello", " again"}).text == " Hello again\n");
  BOOST_TEST(body(SpeechFormat::kSrt, timed).text ==
             "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n"
             "2\n01:01:01,500 --> 01:01:03,500\nagain\n\n");
  BOOST_TEST(body(SpeechFormat::kVtt, timed).text ==
             "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n\n"
             "01:01:01.500 --> 01:01:03.500\nagain\n\n");
  BOOST_TEST(body(SpeechFormat::kVtt, timed).content_type == "text/plain; charset=utf-8");
  BOOST_TEST(
      body(SpeechFormat::kVerboseJson, timed).text ==
      R"({"text":" Hello again","task":"transcribe","language":"en","duration":3663.50,"segments":[)"
      R"({"id":0,"start":0.00,"end":1.50,"text":" Hello"},)"
      R"({"id":1,"start":3661.50,"end":3663.50,"text":" again"}],)"
      R"("usage":{"type":"duration","seconds":3664}})");
}

/// Window 1 has ended when the end of window 0 is shown, and its own text is still to come.
BOOST_FIXTURE_TEST_CASE(a_stream_has_the_texts_of_all_windows_in_order, SessionFixture) {
  engine.render_as(R"({"seconds":3,"windows":[{"samples":"A","start":0},{"samples":"B","start":1},)"
                   R"({"samples":"C","start":2}]})");
  const std::string form = form_of({{"file", "RIFF"}, {"stream", "true"}});
  exchange(
      "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: h\r\n"
      "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " +
      std::to_string(form.size()) + "\r\n\r\n" + form);
  const auto windows = engine.wait_submitted(3);
  BOOST_REQUIRE(windows.size() == 3u);
  deliver(text_output(windows[0].id, "zero ", {1}));
  std::string begin;
  BOOST_REQUIRE(session().take_output(begin));  // a client that reads nothing for a while
  for (const auto& [window, text] : {std::pair{1, "one "}, {2, "two "}, {0, "and "}})
    deliver(
        text_output(windows[static_cast<std::size_t>(window)].id, text, {2}, FinishReason::kStop));
  session().sent();
  std::string all;
  for (const std::string& event : events_of(begin + drain_output())) {
    const auto at = event.find(R"("content":")");
    if (at != event.npos) all += event.substr(at + 11, event.find('"', at + 11) - at - 11);
  }
  BOOST_TEST(all == "zero and one two ");
}

}  // namespace
}  // namespace troupe
