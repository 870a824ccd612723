// Limits on number and time, and whose request it is.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/base/reload.hpp"
#include "runtime/http/api_keys.hpp"
#include "runtime/http/service.hpp"
#include "tests/runtime/http/fake_engine.hpp"

namespace troupe {
namespace {

struct Sink final : ResponseSink {
  void respond(HttpResponse response) override { answer = std::move(response); }
  void fail(std::string_view) noexcept override { answer = {.status = 500}; }
  void begin(HttpResponse head) override { answer = std::move(head); }
  void write(std::string_view bytes, bool last) override {
    answer.body += bytes;
    ended = last;
  }
  [[nodiscard]] bool ready() const noexcept override { return true; }
  [[nodiscard]] std::string header(const std::string& name) const {
    for (const auto& [known, value] : answer.headers)
      if (known == name) return value;
    return "";
  }
  HttpResponse answer{.status = 0};
  bool ended = false;
};

/// A request to a service, from its arrival until its client has gone.
struct Call {
  Sink sink;
  std::unique_ptr<Exchange> exchange;
};

struct Fixture {
  Fixture() {
    config.model_names = {"m"};
    config.defaults.max_model_len = 100;
    config.defaults.vocab_size = 1000;
  }
  Call& post(const std::string& body, const std::string& key = "") {
    if (!service) {
      ServiceEnvironment environment{.wall_clock = [] { return 5.0; },
                                     .steady_clock = [this] { return now; },
                                     .random = [] { return std::uint64_t{1}; },
                                     .post = [](std::function<void()> function) { function(); },
                                     .exchange_ended = {}};
      service = std::make_unique<Service>(config, environment, counters, engine, metrics);
    }
    Call& call = *calls.emplace_back(std::make_unique<Call>());
    call.exchange = service->handle({.method = "POST",
                                     .target = "/v1/completions",
                                     .headers = {{"Authorization", "Bearer " + key}},
                                     .body = body,
                                     .has_body = true},
                                    call.sink);
    return call;
  }
  GenerateRequest last() { return engine.wait_submitted(1).back(); }
  void deliver(RequestOutput output) {
    RequestOutputs outputs = step(std::move(output));
    service->deliver(outputs);
  }
  void finish(RequestId id) { deliver(text_output(id, "x", {1}, FinishReason::kLength)); }
  void fail(RequestId id, ErrorCode code) {
    RequestOutput output;
    output.id = id;
    output.finished = true;
    output.error = Error{code, "too late", ""};
    deliver(std::move(output));
  }

  ServiceConfig config;
  ServiceCounters counters;
  FakeEngine engine;
  EngineMetrics metrics{"m", 100};
  double now = 100;
  std::unique_ptr<Service> service;
  std::vector<std::unique_ptr<Call>> calls;
};

BOOST_FIXTURE_TEST_SUITE(limits, Fixture)

BOOST_AUTO_TEST_CASE(every_sample_of_every_prompt_counts_until_it_ends) {
  config.max_num_queued_reqs = 5;
  post(R"({"prompt":["a","b"],"n":2,"temperature":1})");
  BOOST_TEST(counters.num_samples == 4);
  BOOST_TEST(post(R"({"prompt":"a","n":2,"temperature":1})").sink.answer.status == 503);
  BOOST_TEST(counters.num_samples == 4);
  Call& stream = post(R"({"prompt":"a","stream":true})");
  BOOST_TEST(counters.num_samples == 5);
  const RequestId streamed = last().id;
  BOOST_TEST(post(R"({"prompt":"a"})").sink.answer.status == 503);
  deliver(text_output(streamed, "x", {1}));
  BOOST_TEST(counters.num_samples == 5);
  finish(streamed);
  BOOST_TEST(counters.num_samples == 4);
  BOOST_TEST(stream.sink.ended);
  calls.front()->exchange.reset();  // the client hangs up
  BOOST_TEST(counters.num_samples == 0);
  BOOST_TEST(post(R"({"prompt":"a"})").sink.answer.status == 0);
}

BOOST_AUTO_TEST_CASE(an_invalid_request_is_not_counted) {
  config.max_num_queued_reqs = 5;
  BOOST_TEST(post(R"({"prompt":"a","n":-1})").sink.answer.status == 400);
  BOOST_TEST(post(R"({"prompt":"a","model":"other"})").sink.answer.status == 404);
  BOOST_TEST(counters.num_samples == 0);
}

BOOST_AUTO_TEST_CASE(more_samples_than_fit_at_all_are_no_reason_to_come_back) {
  config.max_num_queued_reqs = 5;
  Call& call = post(R"({"prompt":"a","n":6,"temperature":1})");
  BOOST_TEST(call.sink.answer.status == 400);
  BOOST_TEST(call.sink.answer.body.find("request has 6 samples, max_num_queued_reqs is 5") !=
             std::string::npos);
  BOOST_TEST(call.sink.header("Retry-After") == "");
}

BOOST_AUTO_TEST_CASE(retry_after_follows_from_the_measured_rate) {
  config.max_num_queued_reqs = 8;
  for (int i = 0; i < 40; ++i) {  // one in two seconds
    post(R"({"prompt":"a"})");
    finish(last().id);
    now += 2;
  }
  post(R"({"prompt":"a","n":8,"temperature":1})");
  Call& call = post(R"({"prompt":"a","n":4,"temperature":1})");
  BOOST_TEST(call.sink.answer.status == 503);
  const int seconds_for_four = std::stoi(call.sink.header("Retry-After"));
  BOOST_TEST((seconds_for_four >= 8 && seconds_for_four <= 10), seconds_for_four);
  Call& one = post(R"({"prompt":"a"})");
  const int seconds_for_one = std::stoi(one.sink.header("Retry-After"));
  BOOST_TEST((seconds_for_one >= 2 && seconds_for_one <= 3), seconds_for_one);
}

BOOST_AUTO_TEST_CASE(a_request_has_the_servers_limits_or_shorter_ones_of_its_own) {
  config.defaults.limits = {.max_queue_time_s = 10, .max_request_time_s = 0};
  post(R"({"prompt":"a"})");
  BOOST_TEST((last().limits == RequestLimits{10, 0}));
  post(R"({"prompt":"a","max_queue_time_s":2.5,"max_request_time_s":60})");
  BOOST_TEST((last().limits == RequestLimits{2.5, 60}));
  post(R"({"prompt":"a","max_queue_time_s":20})");
  BOOST_TEST((last().limits == RequestLimits{10, 0}));
  for (const char* bad : {"0", "-1", "\"5\"", "86401"}) {
    Call& call = post(std::string(R"({"prompt":"a","max_queue_time_s":)") + bad + "}");
    BOOST_TEST(call.sink.answer.status == 400);
    BOOST_TEST(call.sink.answer.body.find("max_queue_time_s") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(time_that_is_up_has_a_status_and_a_reason) {
  Call& waited = post(R"({"prompt":"a"})");
  fail(last().id, ErrorCode::kOverloaded);
  BOOST_TEST(waited.sink.answer.status == 503);
  BOOST_TEST(waited.sink.header("Retry-After") == "1");
  Call& took = post(R"({"prompt":"a"})");
  fail(last().id, ErrorCode::kTimeout);
  BOOST_TEST(took.sink.answer.status == 504);
  Call& partly = post(R"({"prompt":"a"})");
  deliver(text_output(last().id, "half", {1}, FinishReason::kTimeout));
  BOOST_TEST(partly.sink.answer.status == 200);
  BOOST_TEST(partly.sink.answer.body.find(R"("text":"half")") != std::string::npos);
  BOOST_TEST(partly.sink.answer.body.find(R"("finish_reason":"timeout")") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_request_carries_the_number_of_its_key) {
  config.api_keys = {{"first"}, {"second"}};
  post(R"({"prompt":"a"})", "second");
  BOOST_TEST(last().tenant == 2u);
  post(R"({"prompt":"a"})", "first");
  BOOST_TEST(last().tenant == 1u);
}

BOOST_AUTO_TEST_CASE(a_request_over_the_limits_of_its_key_is_refused_until_there_is_room) {
  config.api_keys = {{"first", "", {.tokens_per_minute = 4, .max_concurrent_requests = 1}},
                     {"second"}};
  const auto refused_by = [&](const char* limit, const char* retry_after) {
    const Call& refused = post(R"({"prompt":"a"})", "first");
    BOOST_TEST(refused.sink.answer.status == 429);
    BOOST_TEST(refused.sink.header("Retry-After") == retry_after);
    BOOST_TEST(refused.sink.answer.body.find(std::string(R"("param":")") + limit +
                                             R"(","code":"rate_limit_exceeded")") !=
               std::string::npos);
  };
  Call& first = post(R"({"prompt":"a"})", "first");
  const RequestId id = last().id;
  refused_by("max-concurrent-requests", "1");
  BOOST_TEST(post(R"({"prompt":"a"})", "second").sink.answer.status == 0);
  deliver(text_output(id, "all", {1, 2, 3, 4, 5, 6}, FinishReason::kStop));
  BOOST_TEST(first.sink.answer.status == 200);
  first.exchange.reset();
  refused_by("tokens-per-minute", "30");  // six of four
  now += 61;
  BOOST_TEST(post(R"({"prompt":"a"})", "first").sink.answer.status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(keys_have_numbers_in_their_order) {
  const ApiKeys keys({{"a"}, {"b"}, {"a"}});
  BOOST_TEST(keys.tenant("Bearer a") == 1u);
  BOOST_TEST(keys.tenant("bEARER b") == 2u);
  BOOST_TEST(keys.tenant("Bearer c") == 0u);
  BOOST_TEST(keys.tenant("Basic a") == 0u);
  BOOST_TEST(keys.tenant("") == 0u);
  BOOST_TEST(keys.allow("Bearer b"));
  BOOST_TEST(!keys.allow("Bearer "));
  BOOST_TEST(ApiKeys({}).tenant("Bearer a") == 0u);
  BOOST_TEST(ApiKeys({}).allow(""));
}

BOOST_AUTO_TEST_CASE(keys_that_are_read_again_keep_their_numbers_and_no_other_gets_one) {
  Result<std::vector<ApiKey>> next = std::vector<ApiKey>{{"c"}, {"b"}};
  const ApiKeys keys({{"a"}, {"b"}}, [&] { return next; });
  BOOST_TEST(keys.tenant("Bearer a") == 1u);
  BOOST_TEST(!keys.allow("Bearer c"));
  ++reload_count;
  BOOST_TEST(!keys.allow("Bearer a"));
  BOOST_TEST(keys.tenant("Bearer b") == 2u);
  BOOST_TEST(keys.tenant("Bearer c") == 3u);
  next = Error{ErrorCode::kNotFound, "no file", ""};
  ++reload_count;
  BOOST_TEST(keys.tenant("Bearer c") == 3u);
  next = std::vector<ApiKey>{{"a"}};
  ++reload_count;
  BOOST_TEST(keys.tenant("Bearer a") == 1u);
  BOOST_TEST(!keys.allow("Bearer c"));
  next = std::vector<ApiKey>{};
  ++reload_count;
  BOOST_TEST(keys.allow("Bearer a"));
  BOOST_TEST(!keys.allow(""));
}

BOOST_AUTO_TEST_CASE(a_server_without_keys_has_some_after_they_were_read) {
  std::vector<ApiKey> next;
  const ApiKeys keys({}, [&] { return next; });
  BOOST_TEST(keys.allow(""));
  ++reload_count;
  BOOST_TEST(keys.allow(""));
  next = {{"a"}};
  ++reload_count;
  BOOST_TEST(!keys.allow(""));
  BOOST_TEST(keys.tenant("Bearer a") == 1u);
}

BOOST_AUTO_TEST_CASE(limits_of_a_key_are_buckets_that_fill_up) {
  const ApiKeys keys({{"a", "alice", {.requests_per_minute = 2, .max_concurrent_requests = 3}},
                      {"b", "", {.tokens_per_minute = 60}},
                      {"c"}});
  BOOST_TEST(keys.name(1) == "alice");
  BOOST_TEST(keys.name(2) == "2");
  double now = 1000;
  BOOST_TEST(!keys.begin_request(1, now));
  BOOST_TEST(!keys.begin_request(1, now));
  auto limited = keys.begin_request(1, now);
  BOOST_REQUIRE(limited.has_value());
  BOOST_TEST((limited->error == Error{ErrorCode::kRateLimited,
                                      "the API key's limit is reached: requests-per-minute is 2",
                                      "requests-per-minute"}));
  BOOST_TEST(limited->retry_after_s == 30);
  BOOST_TEST(keys.begin_request(1, now + 29).has_value());
  BOOST_TEST(!keys.begin_request(1, now + 30));
  limited = keys.begin_request(1, now + 3000);  // three are running
  BOOST_REQUIRE(limited.has_value());
  BOOST_TEST(limited->error.param == "max-concurrent-requests");
  keys.end_request(1);
  BOOST_TEST(!keys.begin_request(1, now + 3000));

  BOOST_TEST(!keys.begin_request(2, now));
  keys.spend_tokens(2, 90, now);  // more than there are: paid back before the next request
  limited = keys.begin_request(2, now);
  BOOST_REQUIRE(limited.has_value());
  BOOST_TEST(limited->error.param == "tokens-per-minute");
  BOOST_TEST(limited->retry_after_s == 30);
  BOOST_TEST(keys.begin_request(2, now + 30).has_value());
  BOOST_TEST(!keys.begin_request(2, now + 31));

  for (int i = 0; i < 1000; ++i) {
    BOOST_TEST(!keys.begin_request(3, now));
    BOOST_TEST(!keys.begin_request(0, now));  // no key
  }
}

BOOST_AUTO_TEST_CASE(a_key_file_has_names_and_limits) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("troupe_keys_" + std::to_string(getpid())))
          .string();
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_api_key_file(file);
  };
  const auto keys = read(
      "# keys\n\n  plain  \r\nk2 name=bob requests-per-minute=5\n"
      "k3 tokens-per-minute=7\tmax-concurrent-requests=1\n");
  BOOST_REQUIRE(keys.ok());
  BOOST_REQUIRE(keys->size() == 3u);
  BOOST_TEST((*keys)[0].key == "plain");
  BOOST_TEST(((*keys)[0].limits == KeyLimits{}));
  BOOST_TEST((*keys)[1].name == "bob");
  BOOST_TEST(((*keys)[1].limits == KeyLimits{.requests_per_minute = 5}));
  BOOST_TEST(
      ((*keys)[2].limits == KeyLimits{.tokens_per_minute = 7, .max_concurrent_requests = 1}));
  for (const auto& [line, what] : std::map<std::string, std::string>{
           {"k rpm=5", "unknown setting 'rpm'"},
           {"k requests-per-minute=0", "requests-per-minute is '0', it must be a whole number"},
           {"k requests-per-minute=1.5", "requests-per-minute is '1.5'"},
           {"k name=", "name has no value"},
           {"k secret word", "unknown setting 'secret'"}}) {
    const auto refused = read("first\n" + line + "\n");
    BOOST_REQUIRE(!refused.ok());
    BOOST_TEST(refused.error().message.starts_with("api-key-file " + file + ", line 2: " + what),
               refused.error().message);
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace troupe
