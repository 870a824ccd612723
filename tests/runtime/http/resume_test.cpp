// Streams that broke off, and are run again.
#include <simdjson.h>
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "runtime/http/kept_streams.hpp"
#include "runtime/http/session.hpp"
#include "tests/runtime/http/fake_engine.hpp"

namespace troupe {
namespace {

struct Event {
  std::string id;
  std::string data;
  bool operator==(const Event&) const = default;
};

/// Of a chunked stream whose chunks hold whole events.
std::vector<Event> events_with_ids(const std::string& bytes) {
  std::vector<Event> events;
  std::string id;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::string line = bytes.substr(at, bytes.find('\n', at) - at);
    at += line.size() + 1;
    if (line.starts_with("id: ")) id = line.substr(4);
    if (line.starts_with("data: ")) events.push_back({std::exchange(id, ""), line.substr(6)});
  }
  return events;
}

/// A client's view of a stream, sample by sample.
struct Joined {
  std::string text;
  std::string reasoning;
  std::string calls;  ///< ids, names and arguments, by index
  std::string tokens;
  std::string offsets;
  std::string roles;
  std::string finish;
  bool operator==(const Joined&) const = default;
};

struct Answer {
  std::map<std::int64_t, Joined> samples;
  int num_usages = 0;
  bool done = false;
  bool operator==(const Answer&) const = default;
};

void join(Answer& result, const Event& event) {
  if (event.data == "[DONE]") {
    result.done = true;
    return;
  }
  simdjson::dom::parser parser;
  const simdjson::dom::element json = parser.parse(event.data);
  for (const simdjson::dom::element choice : json["choices"].get_array()) {
    Joined& sample = result.samples[choice["index"].get_int64()];
    std::string_view text;
    if (choice["text"].get(text) == simdjson::SUCCESS) sample.text += text;
    if (choice["delta"]["content"].get(text) == simdjson::SUCCESS) sample.text += text;
    if (choice["delta"]["reasoning"].get(text) == simdjson::SUCCESS) sample.reasoning += text;
    simdjson::dom::array calls;
    if (choice["delta"]["tool_calls"].get(calls) == simdjson::SUCCESS) {
      for (const simdjson::dom::element call : calls) {
        if (call["id"].get(text) == simdjson::SUCCESS)
          sample.calls.append("\n").append(text).append(
              call["function"]["name"].get_string().value());
        sample.calls += call["function"]["arguments"].get_string().value();
      }
    }
    if (choice["delta"]["role"].get(text) == simdjson::SUCCESS) sample.roles += text;
    if (choice["finish_reason"].get(text) == simdjson::SUCCESS) sample.finish += text;
    const auto append = [](std::string& to,
                           simdjson::simdjson_result<simdjson::dom::element> from) {
      simdjson::dom::array elements;
      if (from.get(elements) != simdjson::SUCCESS) return;
      for (const simdjson::dom::element element : elements) to += simdjson::minify(element) + " ";
    };
    append(sample.tokens, choice["token_ids"]);
    append(sample.offsets, choice["logprobs"]["text_offset"]);
  }
  simdjson::dom::element usage;
  if (json["usage"].get(usage) == simdjson::SUCCESS && !usage.is_null()) ++result.num_usages;
}

/// Of the answer that the first event belongs to.
std::string id_of(const std::string& bytes) {
  simdjson::dom::parser parser;
  return std::string(parser.parse(events_with_ids(bytes).at(0).data)["id"].get_string().value());
}

struct Fixture {
  std::string folder = (std::filesystem::temp_directory_path() / "troupe-resume-XXXXXX").string();
  ServiceConfig config;
  ServiceCounters counters;
  FakeEngine engine;
  EngineMetrics metrics{"m", 100};
  std::unique_ptr<KeptStreams> streams;
  std::unique_ptr<Service> service;
  std::unique_ptr<HttpSession> session;
  std::uint64_t random = 0xabc;
  double clock = 1700000000.5;

  Fixture() {
    BOOST_REQUIRE(mkdtemp(folder.data()) != nullptr);
    config.model_names = {"m"};
    config.engine_name = "m v1";
    config.defaults.max_model_len = 100;
    config.defaults.vocab_size = 1000;
    restart();
  }
  ~Fixture() {
    session.reset();
    std::filesystem::remove_all(folder);
  }
  /// Another process.
  void restart() {
    session.reset();
    service.reset();
    streams.reset();
    streams = KeptStreams::open(folder, {}, clock).value();
    counters.kept_streams = streams.get();
    counters.api_keys.reset();
    ServiceEnvironment environment{.wall_clock = [this] { return clock; },
                                   .steady_clock = [] { return 1.0; },
                                   .random = [this] { return ++random; },
                                   .post = [](std::function<void()> function) { function(); },
                                   .exchange_ended = {}};
    service = std::make_unique<Service>(config, environment, counters, engine, metrics);
    connect();
  }
  void connect() {
    session = std::make_unique<HttpSession>(
        *service, HttpLimits{}, [] { return 1700000000.5; }, [] {}, false);
  }
  std::string output() {
    std::string all;
    std::string piece;
    while (session->take_output(piece)) {
      all += piece;
      session->sent();
    }
    return all;
  }
  std::string post(const std::string& path, const std::string& body) {
    session->receive("POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" +
                     "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return output();
  }
  std::string get(const std::string& target, const std::string& headers = "") {
    session->receive("GET " + target + " HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n");
    return output();
  }
  GenerateRequest last() { return engine.wait_submitted(1).back(); }
  std::string deliver(RequestOutput output) {
    RequestOutputs outputs = step(std::move(output));
    service->deliver(outputs);
    return this->output();
  }
};

using Texts = std::vector<std::string>;  ///< by token
const Texts kPlainTexts = {"a", "", "\u00e4\u4e2d", "bc", "d"};

/// Outputs of two samples, token by token; some tokens have no text, some text has several bytes.
std::vector<RequestOutput> outputs_of(RequestId id, const Texts& texts) {
  std::vector<RequestOutput> outputs;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (const std::int32_t index : {1, 0}) {
      const auto token = static_cast<TokenId>(10 * static_cast<std::int32_t>(i) + index);
      const bool last = i + 1 == texts.size();
      RequestOutput output = text_output(
          id, texts[i], {token}, last ? std::optional(FinishReason::kStop) : std::nullopt, index);
      output.outputs[0].logprobs = {{{token, -1, 1, texts[i]}}};
      output.finished = last && index == 0;
      if (i == 0) output.prompt_token_ids = {7, 8};
      if (i == 0) output.prompt_text = "echo";
      outputs.push_back(std::move(output));
    }
  }
  return outputs;
}

/// Returns the first sample.
Joined check_all_resumptions(Fixture& f, const std::string& path, const std::string& body,
                             const Texts& texts = kPlainTexts) {
  f.post(path, body);
  const GenerateRequest request = f.last();
  std::string bytes;
  for (RequestOutput& output : outputs_of(request.id, texts)) bytes += f.deliver(std::move(output));
  const std::vector<Event> events = events_with_ids(bytes);
  BOOST_REQUIRE(events.size() > 10u);
  const std::string id = id_of(bytes);
  Answer whole;
  for (const Event& event : events) join(whole, event);
  BOOST_REQUIRE(whole.done);
  f.clock += 5;
  for (std::size_t last = 0; last < events.size() - 1; ++last) {  // [DONE] has no id
    f.restart();
    Answer before;
    for (std::size_t i = 0; i <= last; ++i) join(before, events[i]);
    const std::string target = "/v1/streams/" + id + "?starting_after=" + events[last].id;
    BOOST_TEST(f.get(target) == "");
    GenerateRequest again = f.last();
    BOOST_TEST((again.id != request.id));
    GenerateRequest same = again;
    same.id = request.id;
    BOOST_TEST((same == request));
    std::string rest;
    for (RequestOutput& output : outputs_of(again.id, texts)) rest += f.deliver(std::move(output));
    // Token by token as before: the very same events.
    const std::vector<Event> expected(events.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                                      events.end());
    BOOST_TEST((events_with_ids(rest) == expected), events[last].id);

    // All tokens at once: other events, which say the same.
    BOOST_TEST(f.get(target) == "");
    again = f.last();
    RequestOutput all;
    for (RequestOutput& output : outputs_of(again.id, texts)) {
      if (all.outputs.size() < 2) {
        auto merged = std::move(all.outputs);
        all = output;
        merged.push_back(output.outputs[0]);
        all.outputs = std::move(merged);
        continue;
      }
      CompletionOutput& into = all.outputs[output.outputs[0].index == 1 ? 0 : 1];
      const CompletionOutput& from = output.outputs[0];
      into.text += from.text;
      into.token_ids.push_back(from.token_ids[0]);
      into.logprobs.push_back(from.logprobs[0]);
      into.finish_reason = from.finish_reason;
      all.finished = output.finished;
    }
    Answer joined = before;
    for (const Event& event : events_with_ids(f.deliver(std::move(all)))) join(joined, event);
    BOOST_TEST((joined == whole), events[last].id);
  }
  return whole.samples[0];
}

BOOST_FIXTURE_TEST_SUITE(resume, Fixture)

BOOST_AUTO_TEST_CASE(a_completion_can_be_resumed_after_any_of_its_events) {
  check_all_resumptions(
      *this, "/v1/completions",
      R"({"prompt":"hi","stream":true,"n":2,"temperature":1,"logprobs":0,"return_token_ids":true,)"
      R"("stream_options":{"include_usage":true}})");
}

BOOST_AUTO_TEST_CASE(an_echo_is_not_repeated) {
  check_all_resumptions(*this, "/v1/completions",
                        R"({"prompt":"hi","stream":true,"n":2,"temperature":1,"echo":true})");
}

BOOST_AUTO_TEST_CASE(a_chat_can_be_resumed_after_any_of_its_events) {
  check_all_resumptions(
      *this, "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"so"}],"n":2,)"
      R"("temperature":1,"stream":true,"echo":true,"add_generation_prompt":false,)"
      R"("return_token_ids":true,"stream_options":{"include_usage":true}})");
}

BOOST_AUTO_TEST_CASE(reasoning_and_tool_calls_can_be_resumed_after_any_of_their_events) {
  config.defaults.answers.tools = find_tool_format("hermes");
  config.defaults.answers.reasoning = *find_reasoning_format("deepseek_r1");
  restart();
  const Joined sample = check_all_resumptions(
      *this, "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"}],"n":2,"temperature":1,"stream":true,)"
      R"("tools":[{"type":"function","function":{"name":"f"}}],"logprobs":true,)"
      R"("return_token_ids":true,"stream_options":{"include_usage":true}})",
      {"Hm", ".", "</thi", "nk>", "\n", "Yes", ".\n", "<", "tool_", "call>", "\n{", "\"name\": \"f",
       "\", \"argu", "ments\"", ": {\"\u00e4\"", ": 1", "}}", "\n</tool", "_call>"});
  BOOST_TEST(sample.reasoning == "Hm.");
  BOOST_TEST(sample.text == "\nYes.\n");
  BOOST_TEST(sample.calls.starts_with("\nchatcmpl-tool-"));
  BOOST_TEST(sample.calls.ends_with("f{\"\u00e4\": 1}"));
  BOOST_TEST(sample.finish == "tool_calls");
  BOOST_TEST(sample.tokens == "0 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160 170 180 ");
}

BOOST_AUTO_TEST_CASE(without_an_event_the_whole_stream_comes_and_the_header_names_one_too) {
  post("/v1/completions", R"({"prompt":"hi","stream":true,"request_id":"r%2"})");
  const std::string id = id_of(deliver(text_output(last().id, "ab", {1})));
  restart();
  const std::string target = "/v1/streams/cmpl-r%25" + id.substr(id.find('2'));
  get(target);
  BOOST_TEST(deliver(text_output(last().id, "ab", {1})).find("id: 1.2\ndata: ") !=
             std::string::npos);
  connect();
  get(target, "Last-Event-ID: 1.2\r\n");
  const std::string head = deliver(text_output(last().id, "ab", {1}));
  BOOST_TEST(head.starts_with("HTTP/1.1 200"));  // at once, though it is silent
  BOOST_TEST(events_with_ids(head).empty());
  BOOST_TEST(events_with_ids(deliver(text_output(last().id, "c", {2}))).at(0).id == "2.3");
}

BOOST_AUTO_TEST_CASE(a_stream_that_is_run_again_has_as_much_time_as_it_had_before) {
  config.defaults.limits.max_request_time_s = 30;
  restart();
  post("/v1/completions", R"({"prompt":"hi","stream":true,"request_id":"r"})");
  const GenerateRequest first = last();
  const std::string target = "/v1/streams/" + id_of(deliver(text_output(first.id, "a", {1})));
  clock += 100;
  connect();
  get(target);
  BOOST_TEST(last().arrival_time == first.arrival_time);
  BOOST_TEST(last().limits.max_request_time_s == 130);

  config.defaults.limits.max_request_time_s = 0;  // none
  restart();
  get(target);
  BOOST_TEST(last().limits.max_request_time_s == 0);
}

BOOST_AUTO_TEST_CASE(streams_that_cannot_be_resumed_are_rejected_with_the_reason) {
  BOOST_TEST(get("/v1/streams/cmpl-x").starts_with("HTTP/1.1 404"));
  BOOST_TEST(get("/v1/streams/").starts_with("HTTP/1.1 404"));
  post("/v1/completions", R"({"prompt":"hi","stream":true,"request_id":"r"})");
  const std::string target = "/v1/streams/" + id_of(deliver(text_output(last().id, "a", {1})));
  connect();
  const std::string wrong = get(target + "?starting_after=5");
  BOOST_TEST(wrong.starts_with("HTTP/1.1 400"));
  BOOST_TEST(wrong.find("which has 1 samples") != std::string::npos);
  counters.draining = true;
  BOOST_TEST(get(target).starts_with("HTTP/1.1 503"));
  counters.draining = false;
  counters.kept_streams = nullptr;
  BOOST_TEST(get(target).starts_with("HTTP/1.1 400"));
}

BOOST_AUTO_TEST_CASE(another_client_does_not_get_the_stream) {
  config.api_keys = {{"k1"}, {"k2"}};
  restart();
  const std::string first = "Authorization: Bearer k1\r\n", second = "Authorization: Bearer k2\r\n";
  const auto start_as = [&](const std::string& key) {
    session->receive(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + key +
        "X-Request-Id: r\r\nContent-Length: 29\r\n\r\n" + R"({"prompt":"hi","stream":true})");
    const std::string id = id_of(deliver(text_output(last().id, "a", {1})));
    connect();
    return id;
  };
  const std::string target = "/v1/streams/" + start_as(first);
  BOOST_TEST(get(target).starts_with("HTTP/1.1 401"));
  BOOST_TEST(get(target, second).starts_with("HTTP/1.1 404"));
  // Nor does one with the same request id end it.
  start_as(second);
  BOOST_TEST(get(target, first) == "");
}

BOOST_AUTO_TEST_CASE(a_request_id_of_the_clients_own_does_not_open_its_stream) {
  const std::string body = R"({"prompt":"hi","stream":true,"request_id":"r"})";
  post("/v1/completions", body);
  const std::string id = id_of(deliver(text_output(last().id, "a", {1})));
  BOOST_TEST(id.starts_with("cmpl-r-"));
  BOOST_TEST(id.size() == 7u + 32u);
  connect();
  BOOST_TEST(get("/v1/streams/cmpl-r").starts_with("HTTP/1.1 404"));
  // One with the same request id takes nothing from it.
  post("/v1/completions", body);
  BOOST_TEST(id_of(deliver(text_output(last().id, "a", {1}))) != id);
  connect();
  BOOST_TEST(get("/v1/streams/" + id) == "");
  // What opens nothing has the client's id as it is.
  connect();
  post("/v1/completions", R"({"prompt":"hi","request_id":"r"})");
  BOOST_TEST(last().external_id == "cmpl-r-0");
}

BOOST_AUTO_TEST_CASE(streams_that_are_not_kept_have_no_ids) {
  post("/v1/completions", R"({"prompt":"hi","stream":true,"n":17,"temperature":1})");
  BOOST_TEST(deliver(text_output(last().id, "a", {1})).find("id: ") == std::string::npos);
  connect();
  counters.kept_streams = nullptr;
  post("/v1/completions", R"({"prompt":"hi","stream":true})");
  BOOST_TEST(deliver(text_output(last().id, "a", {1})).find("id: ") == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
