// What browsers ask before, and read after, a request of a page of another origin.

#include "runtime/http/cors.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/base/json.hpp"
#include "tests/runtime/http/session_fixture.hpp"

namespace troupe {
namespace {

/// As Chromium and Firefox send it.
std::string preflight_of(const std::string& path, const std::string& origin,
                         const std::string& method, const std::string& headers = "") {
  return "OPTIONS " + path +
         " HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nAccept: */*\r\n"
         "Access-Control-Request-Method: " +
         method + "\r\n" +
         (headers.empty() ? "" : "Access-Control-Request-Headers: " + headers + "\r\n") +
         "Origin: " + origin +
         "\r\nUser-Agent: Mozilla/5.0\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Site: cross-site\r\n"
         "Sec-Fetch-Dest: empty\r\nReferer: " +
         origin + "/\r\n\r\n";
}

BOOST_FIXTURE_TEST_SUITE(cross_origin_requests, SessionFixture)

BOOST_AUTO_TEST_CASE(a_preflight_says_what_a_page_may_send) {
  config.cors.origins = {"*"};
  config.api_keys = {{"secret"}};
  for (const char* path : {"/v1/chat/completions", "/v1/responses/resp_1", "/v1/models", "/health",
                           "/api/chat", "/no/such/path"}) {
    const std::string answer =
        exchange(preflight_of(path, "https://a.example", "POST", "authorization,content-type"));
    BOOST_TEST(starts(answer, 200), path << answer);
    BOOST_TEST(has(answer, "Access-Control-Allow-Origin: *\r\n"));
    BOOST_TEST(has(answer, "Access-Control-Allow-Headers: authorization,content-type\r\n"));
    BOOST_TEST(has(
        answer, "Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT\r\n"));
    BOOST_TEST(has(answer, "Access-Control-Max-Age: 600\r\n"));
    BOOST_TEST(!has(answer, "Access-Control-Allow-Credentials"));
    BOOST_TEST(body_of(answer) == "OK");
  }
}

BOOST_AUTO_TEST_CASE(a_preflight_in_vain_says_why) {
  config.cors.origins = {"https://a.example"};
  config.cors.methods = {"GET", "POST"};
  config.cors.headers = {"authorization"};
  const std::string path = "/v1/models";
  std::string answer = exchange(preflight_of(path, "https://b.example", "DELETE", "x-other"));
  BOOST_TEST(starts(answer, 400), answer);
  BOOST_TEST(body_of(answer) == "Disallowed CORS origin, method, headers");
  BOOST_TEST(!has(answer, "Access-Control-Allow-Origin"));
  answer = exchange(preflight_of(path, "https://a.example", "DELETE"));
  BOOST_TEST(body_of(answer) == "Disallowed CORS method");
  BOOST_TEST(has(answer, "Access-Control-Allow-Methods: GET, POST\r\n"));
  answer = exchange(
      preflight_of(path, "https://a.example", "GET", "Authorization, content-type,accept"));
  BOOST_TEST(starts(answer, 200), answer);
  BOOST_TEST(has(answer, "Access-Control-Allow-Origin: https://a.example\r\n"));
  BOOST_TEST(has(answer, "Vary: Origin\r\n"));
  BOOST_TEST(
      has(answer,
          "Access-Control-Allow-Headers: Accept, Accept-Language, Content-Language, Content-Type, "
          "authorization\r\n"));
}

BOOST_AUTO_TEST_CASE(without_allowed_origins_no_page_may_call) {
  std::string answer = exchange(preflight_of("/v1/models", "https://a.example", "GET"));
  BOOST_TEST(starts(answer, 400), answer);
  BOOST_TEST(body_of(answer) == "Disallowed CORS origin");
  answer = get("/v1/models", "Origin: https://a.example\r\n");
  BOOST_TEST(starts(answer, 200));
  BOOST_TEST(!has(answer, "Access-Control"));
  // Of a client that is no browser.
  answer = exchange("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  BOOST_TEST(has(answer, "Allow: GET, HEAD, OPTIONS\r\n"), answer);
}

BOOST_AUTO_TEST_CASE(answers_streams_and_errors_can_be_read_by_the_page) {
  config.cors.origins = {"https://a.example"};
  config.api_keys = {{"secret"}};
  const std::string allowed = "Access-Control-Allow-Origin: https://a.example\r\nVary: Origin\r\n";
  const std::string origin = "Origin: https://a.example\r\n";
  const std::string key = origin + "Authorization: Bearer secret\r\n";
  BOOST_TEST(has(get("/v1/models", key), allowed));
  BOOST_TEST(has(get("/v1/models", origin), allowed));  // 401
  BOOST_TEST(has(get("/no/such/path", key), allowed));
  post("/v1/completions", R"({"prompt":"hi","stream":true})", key);
  session().on_silence();
  BOOST_TEST(has(drain_output(), allowed));
  reopen();
  const std::string too_long = exchange("POST /v1/completions HTTP/1.1\r\nHost: h\r\n" + key +
                                        "Content-Length: 99999999999\r\n\r\n");
  BOOST_TEST(starts(too_long, 413));
  BOOST_TEST(has(too_long, allowed));
}

BOOST_AUTO_TEST_CASE(credentials_are_for_named_origins) {
  config.cors.origins = {"*"};
  config.cors.credentials = true;
  const std::string with_cookie =
      get("/v1/models", "Origin: https://a.example\r\nCookie: session=1\r\n");
  BOOST_TEST(has(with_cookie, "Access-Control-Allow-Origin: https://a.example\r\n"));
  BOOST_TEST(has(with_cookie, "Access-Control-Allow-Credentials: true\r\n"));
  BOOST_TEST(has(get("/v1/models", "Origin: https://a.example\r\n"),
                 "Access-Control-Allow-Origin: *\r\n"));
  const std::string answer = exchange(preflight_of("/v1/models", "https://a.example", "GET"));
  BOOST_TEST(has(answer, "Access-Control-Allow-Origin: https://a.example\r\n"));
  BOOST_TEST(has(answer, "Vary: Origin\r\n"));
  BOOST_TEST(has(answer, "Access-Control-Allow-Credentials: true\r\n"));
}

BOOST_AUTO_TEST_CASE(lists_may_be_json_and_what_no_browser_sends_is_refused) {
  ServerOptions options;
  options.allowed_origins = {R"(["https://a.example","http://localhost:3000"])", "https://b"};
  const auto policy = CorsPolicy::create(options);
  BOOST_REQUIRE(policy.ok());
  BOOST_TEST(policy->allows_origin("http://localhost:3000"));
  BOOST_TEST(policy->allows_origin("https://b"));
  BOOST_TEST(!policy->allows_origin("https://c"));
  for (const char* wrong :
       {"[1]", "[\"a\"", "a.example", "https://a/", "https://", "https://a b"}) {
    options.allowed_origins = {wrong};
    const auto refused = CorsPolicy::create(options);
    BOOST_REQUIRE(!refused.ok());
    BOOST_TEST(refused.error().message.find("allowed-origins") == 0u, refused.error().message);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(server_information, SessionFixture)

BOOST_AUTO_TEST_CASE(the_load_is_counted_if_it_is_to_be) {
  post("/v1/completions", R"({"prompt":"a"})");
  const std::unique_ptr<HttpSession> first = std::move(session_);
  BOOST_TEST(body_of(get("/load")) == R"({"server_load":0})");
  config.enable_server_load_tracking = true;
  BOOST_TEST(body_of(get("/load")) == R"({"server_load":1})");
  BOOST_TEST(starts(exchange("POST /ping HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"), 200));
}

BOOST_AUTO_TEST_CASE(the_server_describes_itself_in_development_mode_only) {
  Options options;
  options.server.api_key = {"hush"};
  config.options_text = describe_options(options, false);
  config.options_json = describe_options(options, true);
  BOOST_TEST(starts(get("/server_info"), 404));
  config.dev_mode = true;
  const std::string text = get("/server_info");
  BOOST_TEST(has(text, R"("version":"1.2","vllm_config":"file.config-file = \nmodel.model = )"),
             text);
  const std::string json = get("/server_info?config_format=json");
  BOOST_TEST(has(json, R"("vllm_config":{"file":{"config-file":""},"model":{"model":"")"), json);
  BOOST_TEST(has(json, R"("allowed-methods":["*"])"));
  BOOST_TEST(has(json, R"("max-num-seqs":128)"));
  BOOST_TEST(has(json, R"("num_cpus":)"));
  BOOST_TEST(!has(json + text, "hush"));
  const std::string wrong = get("/server_info?config_format=yaml");
  BOOST_TEST(starts(wrong, 400));
  BOOST_TEST(has(wrong, R"(config_format is \"yaml\", must be text or json)"));
}

BOOST_AUTO_TEST_CASE(the_api_describes_itself) {
  counters.batches = nullptr;
  const std::string answer = get("/openapi.json");
  BOOST_TEST(starts(answer, 200));
  const auto api = nlohmann::json::parse(body_of(answer), nullptr, false);
  BOOST_REQUIRE(api.is_object());
  BOOST_TEST(api["openapi"] == "3.1.0");
  const auto fields_of = [&](const char* path) {
    return api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
              ["properties"];
  };
  const auto fields = fields_of("/v1/completions");
  BOOST_TEST(fields["temperature"].dump() ==
             R"({"maximum":2,"minimum":0,"type":["number","null"]})");
  for (const char* path : {"/v1/chat/completions", "/v1/responses", "/v1/messages"})
    BOOST_TEST(fields_of(path)["temperature"].dump() == fields["temperature"].dump(), path);
  BOOST_TEST(fields["prompt"]["anyOf"].size() == 4u);
  BOOST_TEST(fields_of("/v1/chat/completions")["messages"]["items"]["required"].dump() ==
             R"(["role"])");
  BOOST_TEST(fields_of("/v1/responses")["max_output_tokens"].dump() ==
             R"({"minimum":1,"type":["integer","null"]})");
  BOOST_TEST(fields_of("/api/chat")["think"]["anyOf"].size() == 3u);
  BOOST_TEST(fields["top_p"].dump() ==
             R"({"exclusiveMinimum":0,"maximum":1,"type":["number","null"]})");
  BOOST_TEST(fields["min_tokens"].dump() == R"({"minimum":0,"type":["integer","null"]})");
  const auto& paths = api["paths"];
  BOOST_TEST(paths["/v1/completions"]["post"]["security"].is_array());
  BOOST_TEST(!paths["/health"]["get"].contains("security"));
  BOOST_TEST(paths["/v1/responses/{id}/cancel"].contains("post"));
  for (const char* absent : {"/v1/files", "/pause", "/v1/embeddings"})
    BOOST_TEST(!paths.contains(absent), absent);
  const std::string page = get("/docs");
  BOOST_TEST(has(page, "Content-Type: text/html; charset=utf-8\r\n"));
  BOOST_TEST(!has(page, "http://"));
  BOOST_TEST(!has(page, "https://"));
  config.disable_docs = true;
  BOOST_TEST(starts(get("/docs"), 404));
  BOOST_TEST(starts(get("/openapi.json"), 404));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
