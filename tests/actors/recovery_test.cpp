// Clients of an engine that is ended and replaced under them: each gets what it would have got.
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/base/json.hpp"
#include "tests/support/replaceable_engine.hpp"

namespace troupe::testing {
namespace {

using nlohmann::json;
namespace http = boost::beast::http;
using tcp = boost::asio::ip::tcp;

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

HttpAnswer exchange(std::uint16_t port, http::request<http::string_body> request) {
  boost::asio::io_context context;
  tcp::socket socket(context);
  socket.connect({boost::asio::ip::address_v4::loopback(), port});
  request.set(http::field::host, "h");
  request.prepare_payload();
  http::write(socket, request);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  http::read(socket, buffer, parser);
  return {parser.get().result_int(), parser.get().body()};
}

HttpAnswer get(std::uint16_t port, const std::string& path) {
  return exchange(port, {http::verb::get, path, 11});
}

/// A body that has messages is a chat's.
HttpAnswer post_json(std::uint16_t port, const json& body) {
  http::request<http::string_body> request{
      http::verb::post, body.contains("messages") ? "/v1/chat/completions" : "/v1/completions", 11,
      body.dump()};
  request.set(http::field::content_type, "application/json");
  return exchange(port, std::move(request));
}

/// Joins what comes in pieces: texts and lists are appended, what is null says nothing.
void merge(json& into, const json& from) {
  if (from.is_null()) return;
  if (into.is_null()) {
    into = from;
  } else if (from.is_string()) {
    into = into.get<std::string>() + from.get<std::string>();
  } else if (from.is_array()) {
    into.insert(into.end(), from.begin(), from.end());
  } else if (from.is_object()) {
    for (const auto& [key, value] : from.items()) merge(into[key], value);
  } else {
    into = from;
  }
}

/// An answer without what differs from one time to the next, a stream as one object.
json content_of(const HttpAnswer& answer) {
  if (!answer.body.starts_with("data: ")) {
    json content = json::parse(answer.body);
    for (const char* key : {"id", "created"}) content.erase(key);
    content["status"] = answer.status;
    return content;
  }
  json content;
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    if (line == "data: [DONE]") {
      merge(content["num_ends"], json::array({1}));
      continue;
    }
    const json event = json::parse(line.substr(6));
    if (event.contains("error")) merge(content["errors"], json::array({event["error"]}));
    for (json choice : event.value("choices", json::array())) {
      // Where a character has several tokens, it depends on which of them an event has.
      if (choice.contains("logprobs") && choice["logprobs"].is_object())
        choice["logprobs"].erase("text_offset");
      merge(content["choices"][std::to_string(choice["index"].get<int>())], choice);
    }
    if (event.contains("usage")) merge(content["usages"], json::array({event["usage"]}));
  }
  return content;
}

/// Greedy and sampled, streams and not; what looks back at tokens, what holds text back, and what
/// comes once.
std::vector<json> bodies() {
  const auto chat = [](const std::string& text) {
    return json::array({{{"role", "user"}, {"content", text}}});
  };
  std::string story = "Tell me a story about a dragon. What is the capital of France? ";
  for (int i = 0; i < 2; ++i) story += story;
  std::vector<json> bodies = {
      {{"prompt", story}, {"logprobs", 2}, {"max_tokens", 80}},
      {{"prompt", "Once upon a time"}, {"temperature", 0.9}, {"seed", 5}, {"max_tokens", 120}},
      {{"messages", chat("Count from 1 to 10.")}, {"logprobs", true}, {"top_logprobs", 3}},
      {{"messages", chat("What is 3 + 48?")},
       {"temperature", 1.0},
       {"seed", 6},
       {"n", 2},
       {"stop", {" the ", "ing", "e "}},
       {"max_tokens", 90}},
      {{"prompt", "The capital of Spain is"},
       {"n", 2},
       {"temperature", 0.7},
       {"seed", 8},
       {"prompt_logprobs", 1},
       {"stream", false},
       {"max_tokens", 100}},
      {{"prompt", story}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 70}},
      {{"prompt", "Who are you?"},
       {"stop", {"a", "e", "."}},
       {"min_tokens", 30},
       {"include_stop_str_in_output", true},
       {"max_tokens", 90}},
      {{"prompt", story},
       {"temperature", 0.8},
       {"seed", 1},
       {"repetition_penalty", 1.2},
       {"presence_penalty", 0.5},
       {"bad_words", {"the", "time"}},
       {"max_tokens", 100}},
      {{"prompt", {"One", "Two and", "Three and then"}}, {"logprobs", 0}, {"max_tokens", 60}},
      {{"messages", chat(story)}, {"echo", true}, {"stream", false}, {"max_tokens", 150}},
      {{"prompt", {{9, 8, 7, 6, 5}, {40, 41, 42}}},
       {"temperature", 0.6},
       {"seed", -3},
       {"detokenize", false},
       {"max_tokens", 60}},
  };
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    json& body = bodies[i];
    body["return_token_ids"] = true;
    if (i != 6 && i != 3) body["ignore_eos"] = true;
    if (!body.contains("temperature")) body["temperature"] = 0;
    if (!body.contains("stream")) body["stream"] = true;
    if (!body.contains("max_tokens")) body["max_tokens"] = 100;
    if (body["stream"] == true) body["stream_options"] = {{"include_usage", true}};
  }
  return bodies;
}

/// Every body's client waits on a thread of its own.
std::vector<std::future<json>> ask_all(ReplaceableEngine& engine, const std::vector<json>& bodies) {
  std::vector<std::future<json>> answers;
  for (const json& body : bodies) {
    answers.push_back(std::async(std::launch::async, [&engine, body] {
      const json content = content_of(post_json(engine.port(), body));
      engine.events().report_answer();
      return content;
    }));
  }
  return answers;
}

/// Says where an answer differs, as a JSON patch.
void check_same(const json& answer, const json& expected, std::size_t request) {
  BOOST_TEST(json::diff(expected, answer).dump() == "[]",
             "request " << request << ": " << json::diff(expected, answer).dump());
}

double metric(ReplaceableEngine& engine, const std::string& name) {
  std::istringstream lines(get(engine.port(), "/metrics").body);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{")) return std::stod(line.substr(line.rfind(' ')));
  BOOST_FAIL("there is no metric " << name);
  return 0;
}

const std::vector<json>& undisturbed() {
  static const std::vector<json> answers = [] {
    ReplaceableEngine engine;
    std::vector<json> contents;
    for (auto& answer : ask_all(engine, bodies())) contents.push_back(answer.get());
    for (const json& content : contents)
      BOOST_REQUIRE_MESSAGE(content.contains("choices"), content.dump());
    return contents;
  }();
  return answers;
}

BOOST_AUTO_TEST_CASE(
    every_client_gets_what_it_would_have_got_however_often_the_engine_is_replaced) {
  const std::vector<json>& expected = undisturbed();
  int num_replacements = 0;
  constexpr std::uint32_t kNumSeeds = 8;
  for (std::uint32_t seed = 1; seed <= kNumSeeds; ++seed) {
    std::mt19937 random(seed);
    const auto plan = [&random] {
      return BreakPlan{.num_steps = 1 + random() % 40,
                       .before_step = random() % 2 == 0,
                       .silent = random() % 2 == 0};
    };
    BOOST_TEST_CONTEXT("seed " << seed) {
      ReplaceableEngine engine(plan());
      auto answers = ask_all(engine, bodies());
      while (engine.events().wait_for_break(static_cast<int>(answers.size()))) {
        engine.lose(random);
        engine.connect(plan());
        ++num_replacements;
      }
      for (std::size_t i = 0; i < answers.size(); ++i) check_same(answers[i].get(), expected[i], i);
      BOOST_TEST(metric(engine, "troupe:request_resubmissions_total") > 0);
    }
  }
  BOOST_TEST(num_replacements > 5 * static_cast<int>(kNumSeeds));
}

BOOST_AUTO_TEST_CASE(a_request_that_crashes_its_engine_fails_alone) {
  const std::vector<json>& expected = undisturbed();
  const std::vector<TokenId> poison = {13, 13, 13, 17};
  BreakPlan plan;
  plan.poisoned = [&poison](const SchedulerOutput& step) {
    return std::any_of(
        step.new_requests.begin(), step.new_requests.end(), [&](const NewRequestData& request) {
          return static_cast<std::size_t>(request.num_prompt_tokens) == poison.size() &&
                 std::equal(poison.begin(), poison.end(), request.token_ids.begin());
        });
  };
  ReplaceableEngine engine(plan);
  std::vector<json> all = bodies();
  all.push_back({{"prompt", poison}, {"max_tokens", 5}});
  auto answers = ask_all(engine, all);
  int num_crashes = 0;
  while (engine.events().wait_for_break(static_cast<int>(answers.size()))) {
    engine.lose(LossCause::kCrashed);
    engine.connect(plan);
    ++num_crashes;
  }
  BOOST_TEST(num_crashes == 3);
  for (std::size_t i = 0; i < expected.size(); ++i) check_same(answers[i].get(), expected[i], i);
  const json failed = answers.back().get();
  BOOST_TEST(failed.at("status") == 500);
  BOOST_TEST(failed.dump().find("crashed 3 times") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(without_an_engine_requests_wait_and_health_reports_it) {
  ReplaceableEngine engine;
  BOOST_TEST(get(engine.port(), "/health").status == 200u);
  engine.lose();
  while (get(engine.port(), "/health").status == 200) continue;  // until the Frontend is notified
  BOOST_TEST(get(engine.port(), "/health").status == 503u);

  // One whose time is up meanwhile, and one that can wait.
  json in_a_hurry = bodies()[0];
  in_a_hurry["max_queue_time_s"] = 0.01;
  in_a_hurry["stream"] = false;
  in_a_hurry.erase("stream_options");
  const HttpAnswer refused = post_json(engine.port(), in_a_hurry);
  BOOST_TEST(refused.status == 503u);
  BOOST_TEST(refused.body.find("max_queue_time_s is 0.01") != std::string::npos);
  auto answers = ask_all(engine, {bodies()[1]});
  auto rendered = std::async(std::launch::async, [&engine] {
    http::request<http::string_body> request{http::verb::post, "/tokenize", 11,
                                             R"({"prompt": "Who are you?"})"};
    request.set(http::field::content_type, "application/json");
    return exchange(engine.port(), std::move(request));
  });
  engine.connect({});
  BOOST_TEST(rendered.get().status == 200u);
  check_same(answers[0].get(), undisturbed()[1], 1);
  BOOST_TEST(get(engine.port(), "/health").status == 200u);
}

BOOST_AUTO_TEST_CASE(a_client_that_leaves_while_there_is_no_engine_costs_the_next_one_nothing) {
  ReplaceableEngine engine({.num_steps = 5, .silent = true});
  {
    boost::asio::io_context context;
    tcp::socket socket(context);
    socket.connect({boost::asio::ip::address_v4::loopback(), engine.port()});
    http::request<http::string_body> request{http::verb::post, "/v1/completions", 11,
                                             bodies()[0].dump()};
    request.set(http::field::host, "h");
    request.set(http::field::content_type, "application/json");
    request.prepare_payload();
    http::write(socket, request);
    BOOST_TEST(engine.events().wait_for_break(1));
    engine.lose();
  }
  while (get(engine.port(), "/load").body != R"({"server_load":0})") continue;  // it has left
  engine.connect({});
  auto answers = ask_all(engine, {bodies()[1]});
  check_same(answers[0].get(), undisturbed()[1], 1);
  BOOST_TEST(metric(engine, "troupe:request_resubmissions_total") == 0);
}

}  // namespace
}  // namespace troupe::testing
