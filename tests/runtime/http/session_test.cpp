#include <boost/test/unit_test.hpp>

#include "runtime/base/hash.hpp"
#include "runtime/http/response_store.hpp"
#include "tests/runtime/http/session_fixture.hpp"

namespace troupe {
namespace {

BOOST_FIXTURE_TEST_SUITE(sessions, SessionFixture)

BOOST_AUTO_TEST_CASE(plain_endpoints_answer_at_once_and_keep_the_connection) {
  const std::string health = get("/health");
  BOOST_TEST(health ==
             "HTTP/1.1 200 OK\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\nContent-Length: 0\r\n\r\n");
  BOOST_TEST(body_of(get("/version")) == R"({"version":"1.2"})");
  BOOST_TEST(body_of(get("/load?x=1")) == R"({"server_load":0})");
  BOOST_TEST(starts(exchange("POST /ping HTTP/1.1\r\nHost: h\r\n\r\n"), 200));
  BOOST_TEST(
      has(get("/metrics"), "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n"));
  const std::string head = exchange("HEAD /version HTTP/1.1\r\nHost: h\r\n\r\n");
  BOOST_TEST(has(head, "Content-Length: 17\r\n"));
  BOOST_TEST(body_of(head) == "");
  engine.set_healthy(false);
  BOOST_TEST(starts(get("/health"), 503));
}

BOOST_AUTO_TEST_CASE(models_lists_a_card_for_each_name) {
  BOOST_TEST(
      body_of(get("/v1/models"))
          .starts_with(
              R"({"object":"list","data":[{"id":"m","object":"model","created":1700000000,)"
              R"("owned_by":"vllm","root":"models/m","parent":null,"max_model_len":100,)"
              R"("permission":[{"id":"modelperm-bc0a000000000000bc0a000000000000",)"
              R"("object":"model_permission",)"
              R"("created":1700000000,"allow_create_engine":false,"allow_sampling":true,)"
              R"("allow_logprobs":true,"allow_search_indices":false,"allow_view":true,)"
              R"("allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]},)"
              R"({"id":"alias",)"));
}

BOOST_AUTO_TEST_CASE(a_completion_goes_to_the_engine_and_comes_back) {
  BOOST_TEST(post("/v1/completions", R"({"prompt":"hi","model":"alias"})") == "");
  const GenerateRequest request = engine.wait_submitted(1).back();
  BOOST_TEST(request.external_id == "cmpl-bc0a000000000000bc0a000000000000-0");
  BOOST_TEST((request.prompt == Prompt{TextPrompt{"hi", true}}));
  BOOST_TEST(request.arrival_time == 1700000000.5);
  RequestOutput output = text_output(request.id, "ho", {1, 2}, FinishReason::kLength);
  output.prompt_token_ids = {7, 8, 9};
  deliver(output);
  const std::string answer = drain_output();
  BOOST_TEST(starts(answer, 200));
  BOOST_TEST(body_of(answer) ==
             R"({"id":"cmpl-bc0a000000000000bc0a000000000000","object":"text_completion",)"
             R"("created":1700000000,)"
             R"("model":"alias","choices":[{"index":0,"text":"ho","logprobs":null,)"
             R"("finish_reason":"length","stop_reason":null,"token_ids":null,)"
             R"("prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],)"
             R"("service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":3,)"
             R"("total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null,)"
             R"("completion_tokens_details":null},"kv_transfer_params":null,)"
             R"("ec_transfer_params":null,"metrics":null})");
  BOOST_TEST(counters.num_samples == 0);
  BOOST_TEST(counters.num_exchanges == 0);
  BOOST_TEST(engine.wait_aborted(0).empty());
}

BOOST_AUTO_TEST_CASE(several_prompts_and_samples_are_numbered_through) {
  post("/v1/completions", R"({"prompt":["a","b"],"n":2,"temperature":1})", "X-Request-Id: r7\r\n");
  const auto requests = engine.wait_submitted(2);
  BOOST_REQUIRE(requests.size() == 2u);
  BOOST_TEST(value(requests[1].id) == value(requests[0].id) + 2);
  BOOST_TEST(requests[1].external_id == "cmpl-r7-1");
  BOOST_TEST(counters.num_samples == 4);
  for (const int i : {1, 0}) {
    RequestOutput output =
        text_output(requests[static_cast<std::size_t>(i)].id, "y", {1}, FinishReason::kStop, 1);
    output.outputs.push_back(output.outputs.front());
    output.outputs.back().index = 0;
    output.outputs.back().text = "x";
    output.prompt_token_ids = {1};
    deliver(output);
  }
  const std::string answer = body_of(drain_output());
  std::size_t at = 0;
  for (const char* choice :
       {R"("index":0,"text":"x")", R"("index":1,"text":"y")", R"("index":2,"text":"x")",
        R"("index":3,"text":"y")", R"("prompt_tokens":2,"total_tokens":6)"}) {
    at = answer.find(choice, at);
    BOOST_TEST((at != std::string::npos), choice);
  }
}

BOOST_AUTO_TEST_CASE(a_stream_sends_each_delta_and_ends_with_usage_and_done) {
  post("/v1/completions",
       R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true}})");
  RequestOutput first = text_output(last_id(), "a", {1});
  first.prompt_token_ids = {7, 8};
  deliver(first);
  const std::string begin = drain_output();
  BOOST_TEST(starts(begin, 200));
  BOOST_TEST(has(begin, "Content-Type: text/event-stream; charset=utf-8\r\n"));
  BOOST_TEST(has(begin, "Transfer-Encoding: chunked\r\n"));
  BOOST_TEST(has(begin, R"("text":"a")"));
  deliver(text_output(last_id(), "b", {2}, FinishReason::kStop));
  const std::string rest = drain_output();
  const auto events = events_of(rest);
  BOOST_REQUIRE(events.size() == 3u);
  BOOST_TEST(has(events[0], R"("text":"b","logprobs":null,"finish_reason":"stop")"));
  BOOST_TEST(has(events[1], R"("choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,)"));
  BOOST_TEST(events[2] == "[DONE]");
  BOOST_TEST(rest.ends_with("\r\n0\r\n\r\n"));
  BOOST_TEST(starts(get("/health"), 200));
}

BOOST_AUTO_TEST_CASE(a_chat_stream_begins_with_the_roles_of_all_samples) {
  post("/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"q"}],"n":2,"temperature":1,"stream":true})");
  deliver(text_output(last_id(), "A", {1}, std::nullopt, 1));
  const auto events = events_of(drain_output());
  BOOST_REQUIRE(events.size() == 3u);
  BOOST_TEST(has(events[0], R"("index":0,"delta":{"role":"assistant","content":""})"));
  BOOST_TEST(has(events[1], R"("index":1,"delta":{"role":"assistant","content":""})"));
  BOOST_TEST(has(events[2], R"("index":1,"delta":{"content":"A"})"));
  BOOST_TEST(has(events[2], R"("id":"chatcmpl-)"));
}

BOOST_AUTO_TEST_CASE(output_that_a_slow_client_has_not_read_is_merged) {
  post("/v1/completions", R"({"prompt":"hi","stream":true,"logprobs":0,"return_token_ids":true})");
  const auto delta = [&](std::string text, TokenId token) {
    RequestOutput output = text_output(last_id(), text, {token});
    output.outputs[0].logprobs = {{{token, -1, 1, text}}};
    return output;
  };
  deliver(delta("a", 1));
  std::string piece;
  BOOST_REQUIRE(session().take_output(piece));
  for (TokenId token = 2; token < 500; ++token) deliver(delta("b", token));
  RequestOutput last = delta("c", 500);
  last.finished = true;
  last.outputs[0].finish_reason = FinishReason::kLength;
  deliver(last);
  std::string unused;
  BOOST_TEST(!session().take_output(unused));
  session().sent();
  const auto events = events_of(drain_output());
  BOOST_REQUIRE(events.size() == 2u);
  BOOST_TEST(has(events[0], R"("text":")" + std::string(498, 'b') + R"(c")"));
  BOOST_TEST(has(events[0], R"("text_offset":[1,2,3,)"));
  BOOST_TEST(has(events[0], R"(499,500]}])"));
  BOOST_TEST(has(events[0], R"("finish_reason":"length")"));
}

BOOST_AUTO_TEST_CASE(echo_puts_the_prompt_before_the_text) {
  post("/v1/completions", R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":3})");
  const GenerateRequest request = engine.wait_submitted(1).back();
  BOOST_TEST(request.return_prompt_text);
  RequestOutput output = text_output(request.id, "c", {3}, FinishReason::kLength);
  output.outputs[0].logprobs = {{{3, -3, 1, "c"}}};
  output.prompt_text = "ab";
  output.prompt_token_ids = {1, 2};
  output.prompt_logprobs = {{}, {{2, -2, 1, "b"}}};
  output.first_token_text = "a";
  deliver(output);
  const std::string answer = body_of(drain_output());
  BOOST_TEST(has(answer, R"("text":"abc","logprobs":{"text_offset":[0,1,2],)"
                         R"("token_logprobs":[null,-2.0,-3.0],"tokens":["a","b","c"])"));
  BOOST_TEST(has(answer, R"("prompt_logprobs":[null,{"2":)"));
}

BOOST_AUTO_TEST_CASE(an_error_before_the_stream_has_a_status_and_one_after_it_is_an_event) {
  post("/v1/completions", R"({"prompt":"hi","stream":true})");
  RequestOutput refused;
  refused.id = last_id();
  refused.finished = true;
  refused.error = invalid_argument("prompt has 9 tokens, max_model_len is 8", "prompt");
  deliver(refused);
  const std::string early = drain_output();
  BOOST_TEST(starts(early, 400));
  BOOST_TEST(has(early, "prompt has 9 tokens, max_model_len is 8"));

  post("/v1/completions", R"({"prompt":"hi","stream":true})");
  deliver(text_output(last_id(), "a", {1}));
  drain_output();
  RequestOutput failed;
  failed.id = last_id();
  failed.finished = true;
  failed.error = Error{ErrorCode::kInternal, "broken", ""};
  deliver(failed);
  const std::string late = drain_output();
  const auto events = events_of(late);
  BOOST_REQUIRE(events.size() == 2u);
  BOOST_TEST(events[0] ==
             R"({"error":{"message":"broken","type":"InternalServerError","param":null,)"
             R"("code":500}})");
  BOOST_TEST(events[1] == "[DONE]");
  BOOST_TEST(late.ends_with("0\r\n\r\n"));

  post("/v1/completions", R"({"prompt":"hi"})");
  deliver(text_output(last_id(), "", {}, FinishReason::kError));
  BOOST_TEST(starts(drain_output(), 500));
  BOOST_TEST(counters.num_samples == 0);
}

BOOST_AUTO_TEST_CASE(a_disconnect_aborts_the_rest_of_a_request) {
  post("/v1/completions", R"({"prompt":["a","b","c"],"stream":true})");
  const auto requests = engine.wait_submitted(3);
  deliver(text_output(requests[1].id, "x", {1}, FinishReason::kStop));
  session_.reset();
  BOOST_TEST((engine.wait_aborted(2) == std::vector<RequestId>{requests[0].id, requests[2].id}));
  BOOST_TEST(counters.num_samples == 0);
  deliver(text_output(requests[0].id, "late", {1}, FinishReason::kStop));
}

BOOST_AUTO_TEST_CASE(pipelined_requests_are_answered_in_order_and_byte_by_byte_input_is_fine) {
  const std::string two =
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json; "
      "charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"prompt\r\n6\r\n\":\"x\"}\r\n0\r\n\r\n"
      "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const char c : two) session().receive({&c, 1});
  BOOST_TEST(drain_output() == "");
  deliver(text_output(last_id(), "y", {1}, FinishReason::kStop));
  const std::string both = drain_output();
  BOOST_TEST(has(both, R"("text":"y")"));
  BOOST_TEST(both.find("version") > both.find(R"("text":"y")"));
  BOOST_TEST(both.ends_with(R"({"version":"1.2"})"));
}

BOOST_AUTO_TEST_CASE(wrong_routes_methods_and_bodies_have_their_statuses) {
  BOOST_TEST(starts(get("/nowhere"), 404));
  const std::string method = get("/v1/completions");
  BOOST_TEST(starts(method, 405));
  BOOST_TEST(has(method, "Allow: POST, OPTIONS\r\n"));
  BOOST_TEST(starts(exchange("POST /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n"), 411));
  BOOST_TEST(starts(post("/v1/completions", "{"), 400));
  BOOST_TEST(starts(post("/v1/completions", R"({"prompt":"a","model":"x"})"), 404));
  BOOST_TEST(has(post("/v1/completions", R"({"prompt":"a","model":"x"})"),
                 R"("message":"The model `x` does not exist. Served: m, alias","type":)"
                 R"("NotFoundError","param":"model","code":404)"));
  const std::string options = exchange("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  BOOST_TEST(starts(options, 200));
  BOOST_TEST(has(options, "Allow: GET, HEAD, OPTIONS\r\n"));
  // A path that a longer one of another route begins like.
  for (const auto& [path, methods] : {std::pair{"responses/a", "GET, HEAD, DELETE"},
                                      {"responses/a/input_items", "GET, HEAD"},
                                      {"responses/a/cancel", "POST"},
                                      {"batches/a/cancel", "POST"},
                                      {"files/a/content", "GET, HEAD"},
                                      {"models/org/name", "GET, HEAD"}}) {
    const std::string answer =
        exchange("OPTIONS /v1/" + std::string(path) + " HTTP/1.1\r\nHost: h\r\n\r\n");
    BOOST_TEST(has(answer, "Allow: " + std::string(methods) + ", OPTIONS\r\n"), path);
  }
  const std::string media = exchange(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
      "Content-Length: 2\r\n\r\n{}");
  BOOST_TEST(starts(media, 400));
  BOOST_TEST(has(media, "Connection: close\r\n"));
  BOOST_TEST(session().finished());
  BOOST_TEST(get("/health") == "");
}

BOOST_AUTO_TEST_CASE(requests_over_the_limits_are_refused_before_they_are_read) {
  limits.max_body_bytes = 100;
  limits.max_header_bytes = 1000;
  const std::string large = exchange(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Content-Length: 101\r\n\r\n");
  BOOST_TEST(starts(large, 413));
  BOOST_TEST(has(large, "max_body_bytes, 100"));
  reopen();
  const std::string chunked = exchange(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n65\r\n" +
      std::string(101, 'x'));
  BOOST_TEST(starts(chunked, 413));
  reopen();
  const std::string head = get("/health", "X: " + std::string(2000, 'x') + "\r\n");
  BOOST_TEST(starts(head, 431));
  BOOST_TEST(has(head, "max_header_bytes, 1000"));
  reopen();
  BOOST_TEST(starts(exchange("hello\r\n\r\n"), 400));
  reopen();
  BOOST_TEST(
      starts(exchange("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400));
  refuse_all = true;
  reopen();
  BOOST_TEST(starts(get("/health"), 503));
}

BOOST_AUTO_TEST_CASE(old_clients_and_those_that_wait_for_continue_are_served) {
  const std::string expect = exchange(
      "POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  BOOST_TEST(expect == "HTTP/1.1 100 Continue\r\n\r\n");
  BOOST_TEST(body_of(exchange(R"({"prompt":"a"})")) ==
             R"({"count":1,"max_model_len":100,"tokens":[97],"token_strs":null})");
  const std::string old = exchange("GET /version HTTP/1.0\r\n\r\n");
  BOOST_TEST(old.starts_with("HTTP/1.0 200 OK\r\n"));
  BOOST_TEST(has(old, "Connection: close\r\n"));
  reopen();
  const std::string body = R"({"prompt":"a","stream":true})";
  exchange("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  deliver(text_output(last_id(), "y", {1}, FinishReason::kStop));
  const std::string stream = drain_output();
  BOOST_TEST(!has(stream, "chunked"));
  BOOST_TEST(stream.ends_with("data: [DONE]\n\n"));
  BOOST_TEST(session().finished());
}

BOOST_AUTO_TEST_CASE(tokens_and_texts_are_rendered) {
  BOOST_TEST(body_of(post("/tokenize", R"({"prompt":"ab","return_token_strs":true})")) ==
             R"({"count":2,"max_model_len":100,"tokens":[97,98],"token_strs":["a","b"]})");
  BOOST_TEST(body_of(post("/detokenize", R"({"tokens":[97,98]})")) == R"({"prompt":"ab"})");
}

BOOST_AUTO_TEST_CASE(keys_guard_the_api_and_nothing_else) {
  config.api_keys = {{"secret"}, {"other"}};
  BOOST_TEST(starts(get("/health"), 200));
  const std::string refused = get("/v1/models");
  BOOST_TEST(starts(refused, 401));
  BOOST_TEST(body_of(refused) == R"({"error":"Unauthorized"})");
  BOOST_TEST(starts(get("/v1/models", "Authorization: Bearer wrong\r\n"), 401));
  BOOST_TEST(starts(get("/v1/models", "Authorization: secret\r\n"), 401));
  BOOST_TEST(starts(get("/v1/models", "Authorization: bEaReR other\r\n"), 200));
  BOOST_TEST(starts(exchange("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"), 200));
}

BOOST_AUTO_TEST_CASE(origins_and_request_ids_come_back_when_asked_for) {
  config.cors.origins = {"https://a"};
  config.enable_request_id_headers = true;
  const std::string allowed = get("/health", "Origin: https://a\r\nX-Request-Id: q1\r\n");
  BOOST_TEST(has(allowed, "Access-Control-Allow-Origin: https://a\r\nVary: Origin\r\n"));
  BOOST_TEST(has(allowed, "X-Request-Id: q1\r\n"));
  const std::string other = get("/health", "Origin: https://b\r\n");
  BOOST_TEST(!has(other, "Access-Control"));
  BOOST_TEST(has(other, "X-Request-Id: bc0a000000000000bc0a000000000000\r\n"));
  const std::string preflight = exchange(
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://a\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-a\r\n\r\n");
  BOOST_TEST(has(preflight,
                 "Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT\r\n"));
  BOOST_TEST(has(preflight, "Access-Control-Allow-Headers: x-a\r\n"));
}

BOOST_AUTO_TEST_CASE(a_full_queue_and_a_draining_server_say_503) {
  config.max_num_queued_reqs = 3;
  post("/v1/completions", R"({"prompt":"a","n":3,"temperature":1})");
  const std::unique_ptr<HttpSession> first = std::move(session_);
  const std::string full = post("/v1/completions", R"({"prompt":"a"})");
  BOOST_TEST(starts(full, 503));
  BOOST_TEST(has(full, "Retry-After: 1\r\n"));
  BOOST_TEST(has(full, "max_num_queued_reqs is 3"));
  BOOST_TEST(has(metrics.prometheus_text(),
                 "vllm:admission_rejections_total{model_name=\"m\","
                 "reason=\"max_num_queued_reqs\"} 1.0"));
  counters.draining = true;
  BOOST_TEST(starts(post("/v1/completions", R"({"prompt":"a"})"), 503));
}

BOOST_AUTO_TEST_CASE(a_silent_stream_is_kept_alive_with_comments) {
  post("/v1/completions", R"({"prompt":"hi","stream":true})");
  session().on_silence();
  const std::string begin = drain_output();
  BOOST_TEST(starts(begin, 200));
  BOOST_TEST(has(begin, ": keep-alive\n\n"));
}

BOOST_AUTO_TEST_CASE(caches_are_reset_in_development_mode_only) {
  config.api_keys = {{"secret"}};
  const std::string request = "Authorization: Bearer secret\r\n\r\n";
  const std::string head = " HTTP/1.1\r\nHost: h\r\n";
  BOOST_TEST(starts(exchange("POST /reset_prefix_cache" + head + request), 404));
  config.dev_mode = true;
  BOOST_TEST(starts(exchange("POST /reset_prefix_cache" + head + "\r\n"), 401));
  const std::string refused =
      exchange("POST /reset_prefix_cache?x=1" + head + "Content-Length: 0\r\n" + request);
  BOOST_TEST(starts(refused, 200));
  BOOST_TEST(body_of(refused) == R"({"success":false})");
  BOOST_TEST((engine.last_reset() == ResetCaches{.prefix_cache = true}));
  BOOST_TEST(body_of(exchange("POST /reset_prefix_cache?a&reset_running_requests=True" + head +
                              request)) == R"({"success":true})");
  BOOST_TEST(starts(exchange("POST /reset_encoder_cache" + head + request), 200));
  BOOST_TEST((engine.last_reset() == ResetCaches{.encoder_cache = true}));
  BOOST_TEST(starts(get("/reset_prefix_cache", "Authorization: Bearer secret\r\n"), 405));
}

BOOST_AUTO_TEST_CASE(the_prefix_cache_is_administered_with_a_key) {
  config.api_keys = {{"secret"}};
  const auto send = [&](const std::string& method, const std::string& target,
                        const std::string& body, bool has_key = true) {
    session();
    reopen();  // one that is refused before its body is read ends the connection
    return exchange(method + " " + target + " HTTP/1.1\r\nHost: h\r\n" +
                    (has_key ? "Authorization: Bearer secret\r\n" : "") +
                    "Content-Type: application/json\r\nContent-Length: " +
                    std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  const std::string name = R"({"name":"monday"})";
  BOOST_TEST(starts(send("POST", "/admin/cache/export", name), 501));
  config.admin_cache_directory = "/caches";
  BOOST_TEST(starts(send("POST", "/admin/cache/export", name, false), 401));
  BOOST_TEST(body_of(send("POST", "/admin/cache/export", name)) ==
             R"({"status":"exported","num_blocks":5})");
  BOOST_TEST(body_of(send("POST", "/admin/cache/import", name)) ==
             R"({"status":"imported","num_blocks":5})");
  BOOST_TEST(
      (engine.moves() == std::vector<MoveCache>{{.is_import = false, .folder = "/caches/monday"},
                                                {.is_import = true, .folder = "/caches/monday"}}));
  for (const char* const bad : {R"({"name":"../x"})", R"({"name":".x"})", R"({"name":"a/b"})",
                                R"({"name":""})", R"({})", R"({"name":7})"})
    BOOST_TEST(starts(send("POST", "/admin/cache/import", bad), 400));
  BOOST_TEST(engine.moves().size() == 2u);
  BOOST_TEST(starts(send("DELETE", "/admin/cache?reset_external=true", ""), 200));
  BOOST_TEST((engine.last_reset() == ResetCaches{.prefix_cache = true, .connector = true}));
  BOOST_TEST(starts(send("DELETE", "/admin/cache?reset_external=maybe", ""), 400));
  BOOST_TEST(starts(send("DELETE", "/admin/cache?reset_running_requests=Yes", ""), 200));
  BOOST_TEST((engine.last_reset() == ResetCaches{.prefix_cache = true, .preempt_running = true}));
  config.max_warm_prompts = 2;
  BOOST_TEST(starts(send("POST", "/admin/cache/warm", R"({"prompts":["a","b","c"]})"), 400));
  BOOST_TEST(starts(send("POST", "/admin/cache/warm", R"({"prompts":[]})"), 400));
  BOOST_TEST(starts(send("POST", "/admin/cache/warm", R"({"conversations":[{}]})"), 400));
}

BOOST_AUTO_TEST_CASE(the_engine_is_paused_in_development_mode_only) {
  const auto post_empty = [&](const std::string& target) {
    return exchange("POST " + target + " HTTP/1.1\r\nHost: h\r\n\r\n");
  };
  BOOST_TEST(starts(post_empty("/pause"), 404));
  BOOST_TEST(starts(get("/is_paused"), 404));
  config.dev_mode = true;
  BOOST_TEST(body_of(get("/is_paused")) == R"({"is_paused":false})");
  BOOST_TEST(body_of(post_empty("/pause")) == R"({"status":"paused"})");
  BOOST_TEST(body_of(get("/is_paused")) == R"({"is_paused":true})");
  BOOST_TEST(starts(post_empty("/pause?mode=keep&clear_cache=false"), 200));
  BOOST_TEST(body_of(post_empty("/resume")) == R"({"status":"resumed"})");
  BOOST_TEST(body_of(get("/is_paused")) == R"({"is_paused":false})");
  // Resumed before all requests had ended.
  BOOST_TEST(has(post_empty("/pause?mode=wait&clear_cache=0"), "HTTP/1.1 409 Conflict\r\n"));
  BOOST_TEST(starts(post_empty("/pause?wait_for_inflight_requests=true"), 409));
  const std::string refused = post_empty("/pause?mode=sleep");
  BOOST_TEST(starts(refused, 400));
  BOOST_TEST(has(refused, "sleep"));
  BOOST_TEST((engine.pauses() ==
              std::vector<PauseScheduler>{{.mode = PauseMode::kAbort, .clear_caches = true},
                                          {.mode = PauseMode::kKeep},
                                          {.mode = PauseMode::kWait},
                                          {.mode = PauseMode::kWait, .clear_caches = true}}));
  BOOST_TEST(starts(get("/pause"), 405));
  BOOST_TEST(starts(post_empty("/reset_mm_cache"), 200));
  BOOST_TEST((engine.last_reset() == ResetCaches{.mm_cache = true}));
}

BOOST_AUTO_TEST_CASE(methods_of_the_workers_are_called_in_development_mode_only) {
  const auto call = [&](const std::string& body) {
    session();
    reopen();  // one that is refused before its body is read ends the connection
    return post("/collective_rpc", body);
  };
  BOOST_TEST(starts(call(R"({"method":"list_adapters"})"), 404));
  config.dev_mode = true;
  BOOST_TEST(body_of(call(R"({"method":"list_adapters","timeout":2.5})")) ==
             R"({"results":[[{"lora_name":"a","lora_int_id":7,"lora_path":"/a"}],null]})");
  BOOST_TEST(starts(call(R"({"method":"list_adapters","args":[],"kwargs":{}})"), 200));
  const std::vector<CollectiveRpc> expected = {{ListAdapters{}, 2.5}, {ListAdapters{}, 120}};
  BOOST_TEST((engine.calls() == expected));

  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"method":"sleep"})", R"(unknown method \"sleep\", there is: list_adapters)"},
           {R"({"method":"warm_up"})",
            R"(method \"warm_up\" is called when an engine starts only)"},
           {R"({"method":"load_adapter"})", "is called by POST /v1/load_lora_adapter"},
           {R"({"method":"list_adapters","args":["a"]})", "takes no arguments"},
           {R"({"method":"list_adapters","kwargs":{"x":1}})", "takes no arguments"},
           {R"({"method":"list_adapters","args":"a"})", "args"},
           {R"({"method":"list_adapters","timeout":0})", "timeout must be"},
           {R"({"method":"list_adapters","rank":0})", R"(unknown field \"rank\")"},
           {R"({"args":[]})", "method"}}) {
    const std::string refused = call(body);
    BOOST_TEST(starts(refused, 400));
    BOOST_TEST(has(refused, message), refused);
  }
  BOOST_TEST(engine.calls().size() == 2u);
}

BOOST_AUTO_TEST_CASE(draining_a_group_requires_authorization) {
  const auto drain = [&](const std::string& body) { return post("/admin/drain", body); };
  BOOST_TEST(starts(drain(R"({"group":1})"), 403));
  reopen();  // its body was not read
  BOOST_TEST(has(get("/admin/topology"), "HTTP/1.1 403 Forbidden\r\n"));
  config.open_admin = true;
  BOOST_TEST(body_of(drain(R"({"group":1,"timeout_s":2.5})")) == R"({"status":"drained"})");
  BOOST_TEST((engine.drains() == std::vector<DrainGroup>{{.group = 1, .timeout_s = 2.5}}));
  BOOST_TEST(starts(drain(R"({"group":2})"), 400));
  BOOST_TEST(starts(drain(R"({"timeout_s":1})"), 400));
  BOOST_TEST(has(drain(R"({"group":-1})"), "group must be"));
  BOOST_TEST(has(drain(R"({"group":1,"timeout_s":-1})"), "timeout_s must be"));
  BOOST_TEST(body_of(get("/admin/topology")) ==
             R"({"groups":[{"group":0,"state":"serving","incarnation":3},)"
             R"({"group":1,"state":"absent","incarnation":1}],)"
             R"("nodes":[{"name":"core","host":"h","groups":[0],"joined":true}]})");
}

BOOST_AUTO_TEST_CASE(a_request_may_name_its_group_and_its_session) {
  config.defaults.data_parallel_size = 2;
  const std::string path = "/v1/completions";
  BOOST_TEST(
      has(post(path, R"({"prompt":"hi","data_parallel_rank":2})"), "data_parallel_rank must be"));
  BOOST_TEST(has(post(path, R"({"prompt":"hi"})", "X-data-parallel-rank: 2\r\n"),
                 "X-data-parallel-rank is \\\"2\\\", it must be between 0 and 1"));
  post(path, R"({"prompt":"hi","data_parallel_rank":1})", "X-Session-ID: s\r\n");
  BOOST_TEST((engine.last_placement() == Placement{.data_parallel_rank = 1, .session_id = "s"}));
  reopen();  // the first one is running
  post(path, R"({"prompt":"hi","session_id":"t","kv_transfer_params":{"do_remote_decode":true}})");
  BOOST_TEST((engine.last_placement() ==
              Placement{.session_id = "t", .kv_transfer_params = R"({"do_remote_decode":true})"}));
}

BOOST_AUTO_TEST_CASE(a_header_says_whether_a_request_is_blended) {
  const std::string path = "/v1/completions";
  const std::string body = R"({"prompt":"hi"})";
  BOOST_TEST(has(post(path, body, "X-Enable-Blending: yes\r\n"),
                 "X-Enable-Blending is \\\"yes\\\", it must be true or false"));
  post(path, body, "X-Enable-Blending: true\r\n");
  BOOST_TEST(engine.last_placement().kv_transfer_params == R"({"enable_blending":true})");
  reopen();  // the first one is running
  post(path, R"({"prompt":"hi","kv_transfer_params":{"a":"{\"b\":1}"}})",
       "X-Enable-Blending: false\r\n");
  BOOST_TEST(engine.last_placement().kv_transfer_params ==
             R"({"a":"{\"b\":1}","enable_blending":false})");
  reopen();
  post(path, R"({"prompt":"hi","kv_transfer_params":{"enable_blending":false}})",
       "X-Enable-Blending: true\r\n");
  BOOST_TEST(engine.last_placement().kv_transfer_params == R"({"enable_blending":false})");
}

BOOST_AUTO_TEST_CASE(requests_are_counted_by_route_method_and_kind_of_status) {
  get("/health");
  get("/metrics");
  get("/v1/models");
  get("/v1/models");
  get("/no/such/path");
  exchange("BREW /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string body = R"({"prompt":"hi"})";
  post("/v1/completions", body);
  const auto text = [&] { return metrics.prometheus_text(); };
  BOOST_TEST(!has(text(), "/v1/completions"));  // not yet answered
  deliver(text_output(last_id(), "t", {5}, FinishReason::kLength));
  drain_output();
  BOOST_TEST(
      has(text(), R"(http_requests_total{handler="/v1/models",method="GET",status="2xx"} 2.0)"));
  BOOST_TEST(
      has(text(), R"(http_requests_total{handler="/v1/models",method="OTHER",status="4xx"} 1.0)"));
  BOOST_TEST(has(text(), R"(http_requests_total{handler="none",method="GET",status="4xx"} 1.0)"));
  BOOST_TEST(has(text(), R"(http_requests_total{handler="/v1/completions",method="POST",)"
                         R"(status="2xx"} 1.0)"));
  BOOST_TEST(has(text(), R"(http_request_duration_seconds_bucket{handler="/v1/completions",)"
                         R"(method="POST",le="0.1"} 1.0)"));
  BOOST_TEST(has(text(), R"(http_request_size_bytes_sum{handler="/v1/completions"} )" +
                             std::to_string(body.size()) + ".0"));
  BOOST_TEST(has(text(), R"(http_response_size_bytes_count{handler="/v1/models"} 3.0)"));
  BOOST_TEST(has(text(), "http_request_duration_highr_seconds_count 5.0"));
  BOOST_TEST(!has(text(), "\"/health\""));
}

BOOST_AUTO_TEST_CASE(the_stream_of_a_stored_response_begins_before_it_has_news) {
  const auto store = std::move(ResponseStore::open("", {})).value();
  counters.responses = store.get();
  const std::string begun = "data: 0\n\n";
  const std::string news = "data: 1\n\n";
  const StoredResponse queued{.response = "{}", .input = "[]", .messages = {}};
  const ResponseRun nobodys{.owner = to_hex(sha256({}))};  // a client's without a key
  const auto token = store->begin("resp_1", queued, nobodys, {.events = begun});
  BOOST_REQUIRE(token.ok());
  BOOST_TEST(starts(get("/v1/responses/resp_1?stream=true&starting_after=0"), 200));
  BOOST_TEST(
      store->append("resp_1", *token, {.events = news, .response = "{}", .is_final = true}).ok());
  BOOST_TEST(has(drain_output(), news));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
