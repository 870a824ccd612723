// Requests to write down sounds, and the forms of their answers.
#include "runtime/http/speech.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/base/base64.hpp"
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

/// A sound of 13 s for a model that takes 5 s at a time. Ids: text below 90, 90 ends, 100 + t is
/// the timestamp t steps of 20 ms.
Sound long_sound() {
  return {.seconds = 13,
          .num_frames = 1300,
          .num_mels = 1,
          .window_frames = 500,
          .no_timestamps = 99,
          .end = 90,
          .features = std::vector<std::byte>(1300 * sizeof(float))};
}

BOOST_AUTO_TEST_CASE(a_window_ends_at_its_last_pair_of_timestamps) {
  const SpeechWindow cut = speech_window(
      std::vector<TokenId>{100, 1, 2, 160, 160, 3, 91, 225, 226, 4, 5},
      "<|0.00|> Hello,<|1.20|><|1.20|> world<|en|>!<|2.50|><|2.52|> And", long_sound(), 600);
  BOOST_REQUIRE(cut.segments.size() == 2u);
  BOOST_TEST(
      (cut.segments[0] == SpeechSegment{600, 6.0, 6.0 + 60 * 0.02, " Hello,", {100, 1, 2, 160}}));
  BOOST_TEST(
      (cut.segments[1] ==
       SpeechSegment{600, 6.0 + 60 * 0.02, 6.0 + 125 * 0.02, " world!", {160, 3, 91, 225, 226}}));
  BOOST_TEST(cut.num_frames == 250);
}

BOOST_AUTO_TEST_CASE(a_window_without_pairs_is_one_segment_and_the_next_one_follows_it) {
  const auto open =
      speech_window(std::vector<TokenId>{100, 1, 90}, "<|0.00|> no <| end", long_sound(), 1000);
  BOOST_REQUIRE(open.segments.size() == 1u);
  BOOST_TEST((open.segments[0] == SpeechSegment{1000, 10, 13, " no <| end", {100, 1}}));
  BOOST_TEST(open.num_frames == 300);
  const auto ended =
      speech_window(std::vector<TokenId>{100, 1, 150, 90}, "<|0.00|> a<|1.00|>", long_sound(), 0);
  BOOST_TEST(ended.segments[0].end == 1);
  BOOST_TEST(ended.num_frames == 500);
  // A single timestamp at the end: nothing is said behind it.
  const auto last = speech_window(std::vector<TokenId>{100, 1, 150, 160, 2, 170, 90},
                                  "<|0.00|> a<|1.00|><|1.20|> b<|1.40|>", long_sound(), 0);
  BOOST_REQUIRE(last.segments.size() == 2u);
  BOOST_TEST((last.segments[1] == SpeechSegment{0, 60 * 0.02, 70 * 0.02, " b", {160, 2, 170}}));
  BOOST_TEST(last.num_frames == 500);
  BOOST_TEST(speech_window({}, "", long_sound(), 0).segments.empty());
  // Timestamps that say nothing do not keep the transcript where it is.
  BOOST_TEST(speech_window(std::vector<TokenId>{100, 100, 1}, "<|0.00|><|0.00|> a", long_sound(), 0)
                 .num_frames == 500);
}

BOOST_AUTO_TEST_CASE(answers_have_the_form_that_was_asked_for) {
  SpeechRequest request;
  request.sound.seconds = 3663.5;
  const std::vector<SpeechSegment> segments = {{0, 0, 1.5, " Hello", {100, 7, 175}},
                                               {150, 1.5, 1.5, "", {}},
                                               {150, 3661.5, 3663.5, " again", {8}}};
  const auto body = [&](SpeechFormat format) {
    request.format = format;
    return speech_body(request, " Hello again", segments);
  };
  BOOST_TEST(body(SpeechFormat::kJson).text ==
             R"({"text":" Hello again","usage":{"type":"duration","seconds":3664}})");
  BOOST_TEST(body(SpeechFormat::kText).text == " Hello again\n");
  BOOST_TEST(body(SpeechFormat::kSrt).text ==
             "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n"
             "2\n01:01:01,500 --> 01:01:03,500\nagain\n\n");
  BOOST_TEST(body(SpeechFormat::kVtt).text ==
             "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n\n"
             "01:01:01.500 --> 01:01:03.500\nagain\n\n");
  BOOST_TEST(body(SpeechFormat::kVtt).content_type == "text/plain; charset=utf-8");
  BOOST_TEST(
      body(SpeechFormat::kVerboseJson).text ==
      R"({"text":" Hello again","task":"transcribe","language":"en","duration":3663.50,"segments":[)"
      R"({"id":0,"seek":0,"start":0.00,"end":1.50,"text":" Hello","tokens":[100,7,175]},)"
      R"({"id":1,"seek":150,"start":1.50,"end":1.50,"text":"","tokens":[]},)"
      R"({"id":2,"seek":150,"start":3661.50,"end":3663.50,"text":" again","tokens":[8]}],)"
      R"("usage":{"type":"duration","seconds":3664}})");
}

BOOST_FIXTURE_TEST_CASE(a_stream_has_the_segments_of_one_window_after_the_other, SessionFixture) {
  const std::string features = to_base64(std::vector<std::byte>(300 * sizeof(float)));
  engine.render_as(
      R"({"seconds":3,"num_frames":300,"num_mels":1,"window_frames":200,"no_timestamps":99,)"
      R"("end":90,"features":")" +
      features + "\"}");
  const std::string form = form_of({{"file", "RIFF"}, {"stream", "true"}});
  exchange(
      "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: h\r\n"
      "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " +
      std::to_string(form.size()) + "\r\n\r\n" + form);
  const auto window = [&](std::size_t count) {
    const auto submitted = engine.wait_submitted(count);
    BOOST_REQUIRE(submitted.size() == count);
    return submitted.back();
  };
  const auto size_of = [](const GenerateRequest& request) {
    const auto& documents = std::get<ChatPrompt>(request.prompt).documents_json;
    return documents.size();
  };
  const auto first = window(1);
  BOOST_TEST(size_of(first) == 4 + (200 * sizeof(float) + 2) / 3 * 4);
  deliver(text_output(first.id, "<|0.00|> zero", {100, 1}));
  deliver(text_output(first.id, "<|0.60|><|0.60|> on", {130, 130, 2}, FinishReason::kLength));
  const auto second = window(2);  // from 0.6 s on
  BOOST_TEST(size_of(second) == 4 + (200 * sizeof(float) + 2) / 3 * 4);
  deliver(text_output(second.id, "<|0.00|> one<|2.00|>", {100, 3, 200, 90}, FinishReason::kStop));
  const auto third = window(3);
  BOOST_TEST(size_of(third) == 4 + (40 * sizeof(float) + 2) / 3 * 4);
  deliver(text_output(third.id, "<|0.00|> two", {100, 4, 90}, FinishReason::kStop));
  std::string all;
  for (const std::string& event : events_of(drain_output())) {
    const auto at = event.find(R"("content":")");
    if (at != event.npos) all += event.substr(at + 11, event.find('"', at + 11) - at - 11);
  }
  BOOST_TEST(all == " zero one two");
}

}  // namespace
}  // namespace troupe
