// Who may call the server, by what name, with what kind of body; and what the log says of it.

#include <zlib.h>

#include <boost/test/unit_test.hpp>
#include <deque>

#include "runtime/http/allowed_hosts.hpp"
#include "runtime/http/gzip.hpp"
#include "tests/runtime/http/session_fixture.hpp"
#include "tests/support/standard_error.hpp"

namespace troupe {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

AllowedHosts hosts_of(const std::string& host, std::vector<std::string> keys = {},
                      std::vector<std::string> names = {}) {
  ServerOptions options;
  options.host = host;
  options.api_key = std::move(keys);
  options.allowed_hosts = std::move(names);
  return AllowedHosts(options);
}

BOOST_FIXTURE_TEST_SUITE(access_control, SessionFixture)

BOOST_AUTO_TEST_CASE(foreign_host_names_are_rejected_by_a_server_without_keys) {
  for (const char* listening : {"127.0.0.1", "localhost", "::1"}) {
    const AllowedHosts hosts = hosts_of(listening);
    for (const char* own :
         {"localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.1.2.3",
          "[::1]:8000", "[::1]", "a.localhost", "box", ""}) {
      BOOST_TEST(hosts.allow(own), listening << " " << own);
    }
    for (const char* other :
         {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
          "192.168.1.5", "[2001:db8::1]", "alocalhost.com", "evil.local", "127.0.0.1.",
          "127.evil.io", "EVIL.Example.", "[::1].evil.example", "evil.example:localhost"}) {
      BOOST_TEST(hosts.allow(other) == (std::string(other) == "127.0.0.1." ||
                                        std::string(other).starts_with("[::1]")),
                 listening << " " << other);
    }
  }
  for (const char* listening : {"0.0.0.0", "::", "192.168.1.5", "box.example.com"}) {
    const AllowedHosts hosts = hosts_of(listening);
    for (const char* own : {"192.168.1.5:8000", "[2001:db8::1]", "localhost:8000", "troupe",
                            "troupe.default.svc.cluster.local", "host.docker.internal"}) {
      BOOST_TEST(hosts.allow(own), listening << " " << own);
    }
    BOOST_TEST(!hosts.allow("evil.example"));
    BOOST_TEST(hosts.allow("box.example.com") == (std::string(listening) == "box.example.com"));
  }
  BOOST_TEST(hosts_of("0.0.0.0", {"key"}).allow("evil.example"));
  ServerOptions with_file;
  with_file.api_key_file = "keys";
  BOOST_TEST(AllowedHosts(with_file).allow("evil.example"));
  const AllowedHosts named =
      hosts_of("0.0.0.0", {"key"}, {"API.example.com", "*.b.example", "::1"});
  for (const char* own : {"api.example.com:443", "x.B.example", "y.x.b.example", "[::1]:80"})
    BOOST_TEST(named.allow(own), own);
  for (const char* other :
       {"b.example", "xb.example", "localhost", "example.com", "a.api.example.com"})
    BOOST_TEST(!named.allow(other), other);
  BOOST_TEST(hosts_of("127.0.0.1", {}, {"*"}).allow("evil.example"));
}

BOOST_AUTO_TEST_CASE(a_host_that_is_not_ours_reaches_nothing_but_health) {
  config.allowed_hosts = hosts_of("127.0.0.1");
  config.open_admin = true;
  const auto ask = [&](const std::string& request, const std::string& host) {
    session();
    reopen();
    return exchange(request + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  for (const char* request : {"GET /v1/models", "GET /admin/topology", "GET /metrics",
                              "GET /version", "POST /v1/completions", "OPTIONS /v1/completions",
                              "GET /nowhere", "GET http://evil.example/v1/models"}) {
    const std::string answer = ask(request, "evil.example:8000");
    BOOST_TEST(starts(answer, 403), request << answer);
    BOOST_TEST(has(answer, "evil.example"));
    BOOST_TEST(has(answer, "allowed-hosts"));
  }
  BOOST_TEST(starts(ask("GET /v1/models", "localhost:8000"), 200));
  BOOST_TEST(starts(ask("GET /admin/topology", "127.0.0.1:8000"), 200));
  BOOST_TEST(
      starts(ask("GET http://localhost/v1/models", "evil.example"), 200));  // RFC 9112, 3.2.2
  BOOST_TEST(starts(ask("GET http://evil.example/v1/models", "localhost"), 403));
  BOOST_TEST(starts(ask("GET /health", "evil.example"), 200));
}

BOOST_AUTO_TEST_CASE(tokenizing_needs_the_key_as_all_work_does) {
  config.api_keys = {{"secret"}};
  for (const char* path : {"/tokenize", "/detokenize"}) {
    const std::string answer = post(path, R"({"prompt":"a","tokens":[97]})");
    BOOST_TEST(starts(answer, 401), answer);
    reopen();
    BOOST_TEST(starts(
        post(path, R"({"prompt":"a","tokens":[97]})", "Authorization: Bearer secret\r\n"), 200));
  }
}

BOOST_AUTO_TEST_CASE(a_request_id_is_at_most_256_printable_characters) {
  config.enable_request_id_headers = true;
  const auto ask = [&](const std::string& id) {
    session();
    reopen();
    return get("/version", "X-Request-Id: " + id + "\r\n");
  };
  for (const std::string& good :
       {std::string("q1"), std::string(256, '~'), std::string("a b\"c")}) {
    const std::string answer = ask(good);
    BOOST_TEST(starts(answer, 200));
    BOOST_TEST(has(answer, "X-Request-Id: " + good + "\r\n"));
  }
  for (const std::string& bad :
       {std::string(257, 'x'), std::string(60000, 'x'), std::string("a\xFFz"),
        std::string("gr\xC3\xBC\xC3\x9F"), std::string("a\tb")}) {
    const std::string answer = ask(bad);
    BOOST_TEST(starts(answer, 400));
    BOOST_TEST(has(answer, "X-Request-Id has " + std::to_string(bad.size()) + " bytes"));
    BOOST_TEST(!has(answer, bad));
    BOOST_TEST(answer.size() < 1000u);
  }
  // The same for what a preflight lists.
  config.cors.origins = {"*"};
  for (const std::string& bad : {std::string(60000, 'x'), std::string("x\xFF")}) {
    reopen();
    BOOST_TEST(!has(exchange("OPTIONS /version HTTP/1.1\r\nHost: h\r\nOrigin: https://a\r\n"
                             "Access-Control-Request-Headers: " +
                             bad + "\r\n\r\n"),
                    bad));
  }
}

BOOST_AUTO_TEST_CASE(a_body_may_be_packed_by_gzip_and_by_nothing_else) {
  const std::string plain = R"({"prompt":"a"})";
  const auto send = [&](const std::string& body, const std::string& fields) {
    session();
    reopen();
    return post("/tokenize", body, fields);
  };
  const std::string expected = R"({"count":1,"max_model_len":100,"tokens":[97],"token_strs":null})";
  for (const char* coding : {"gzip", "GZIP", "x-gzip"}) {
    BOOST_TEST(body_of(send(gzip(plain), "Content-Encoding: " + std::string(coding) + "\r\n")) ==
               expected);
  }
  BOOST_TEST(body_of(send(plain, "Content-Encoding: identity\r\n")) == expected);
  BOOST_TEST(body_of(send(gzip(plain.substr(0, 4)) + gzip(plain.substr(4)),
                          "Content-Encoding: gzip\r\n")) == expected);
  for (const char* fields :
       {"Content-Encoding: br\r\n", "Content-Encoding: deflate\r\n", "Content-Encoding: zstd\r\n",
        "Content-Encoding: gzip, gzip\r\n", "Content-Encoding: gzip;q=1\r\n",
        "Content-Encoding: \r\n", "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n"}) {
    const std::string answer = send(gzip(plain), fields);
    BOOST_TEST(starts(answer, 415), fields << answer);
    BOOST_TEST(has(answer, "Accept-Encoding: gzip, identity\r\n"));
    BOOST_TEST(has(answer, "HTTP/1.1 415 Unsupported Media Type\r\n"));
  }
  const std::string packed = gzip(plain);
  for (const std::string& wrong : {plain, packed.substr(0, packed.size() - 1), packed + "x",
                                   packed.substr(0, 5), std::string()}) {
    BOOST_TEST(starts(send(wrong, "Content-Encoding: gzip\r\n"), 400));
  }
}

BOOST_AUTO_TEST_CASE(the_size_of_a_body_after_decompression_counts) {
  const std::string bomb = gzip(std::string(std::size_t{100} << 20, ' '));
  const auto unpacked = gunzip(bomb, 1 << 20);
  BOOST_REQUIRE(!unpacked.ok());
  BOOST_TEST((unpacked.error().code == ErrorCode::kTooLarge));
  BOOST_TEST(gunzip(gzip(std::string(1000, 'x')), 1000).ok());
  BOOST_TEST(!gunzip(gzip(std::string(1001, 'x')), 1000).ok());
  config.max_body_bytes = 1 << 20;
  const std::string answer = post("/tokenize", bomb, "Content-Encoding: gzip\r\n");
  BOOST_TEST(starts(answer, 413));
  BOOST_TEST(has(answer, "max_body_bytes, 1048576"));
}

BOOST_AUTO_TEST_CASE(long_bodies_are_parsed_on_another_thread_unless_the_client_disconnects) {
  std::deque<std::function<void()>> waiting;
  work = [&](Work next) { waiting.push_back(std::move(next.function)); };
  const std::string body = R"({"prompt":"a","user":")" + std::string(100000, 'x') + R"("})";
  BOOST_TEST(post("/tokenize", body) == "");
  BOOST_REQUIRE(waiting.size() == 1u);
  waiting.front()();
  BOOST_TEST(starts(drain_output(), 200));
  waiting.clear();
  BOOST_TEST(post("/v1/completions", body) == "");
  BOOST_TEST(counters.num_exchanges == 1);
  session_.reset();  // the client has left
  BOOST_TEST(counters.num_exchanges == 0);
  waiting.front()();
  BOOST_TEST(engine.wait_submitted(0).empty());
  waiting.clear();
  BOOST_TEST(starts(post("/tokenize", R"({"prompt":"a"})"), 200));  // a short one at once
  BOOST_TEST(waiting.empty());
  post("/v1/completions", std::string(100000, '['));
  waiting.front()();
  BOOST_TEST(starts(drain_output(), 400));
}

BOOST_AUTO_TEST_CASE(each_request_has_a_line_in_the_log_and_none_of_its_secrets) {
  config.log_requests = true;
  config.api_keys = {{"other"}, {"secret"}};
  StandardError captured;
  const std::string key = "Authorization: Bearer secret\r\n";
  const auto logged = [&] { return captured.take(); };
  get("/v1/models?api_key=hush", key);
  std::string line = logged();
  BOOST_TEST(
      has(line, "http request client=9.9.9.9:1 key=2 method=GET path=/v1/models status=200 "));
  BOOST_TEST(!has(line, "hush"));
  BOOST_TEST(!has(line, "secret"));

  post("/v1/completions", R"({"prompt":"prompt text"})", key);
  now += 0.25;
  RequestOutput output = text_output(last_id(), "output text", {1, 2}, FinishReason::kStop);
  output.prompt_token_ids = {7, 8, 9};
  output.finished_times.push_back({.queued = 1, .scheduled = 1.01, .first_token = 1.05});
  deliver(output);
  drain_output();
  line = logged();
  BOOST_TEST(has(line, "key=2 request=cmpl-"));
  BOOST_TEST(has(line,
                 " method=POST path=/v1/completions status=200 prompt_tokens=3 output_tokens=2 "
                 "queue_ms=10.0 ttft_ms=50.0 total_ms=250.0\n"),
             line);
  BOOST_TEST(!has(line, "text"));

  const auto refused = [&](const std::string& bytes, const std::string& expected) {
    session();
    reopen();
    exchange(bytes);
    const std::string written = logged();
    BOOST_TEST(has(written, expected), written);
    BOOST_TEST(std::count(written.begin(), written.end(), '\n') == 1, written);
  };
  const std::string body = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
  refused("hello\r\n\r\n", "key=0 method=- path=- status=400 ");
  refused("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n",
          "method=GET path=- status=400 ");
  refused("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", "path=/v1/models status=401 ");
  refused("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n", "path=/nowhere status=404 ");
  refused("POST /v1/completions HTTP/1.1\r\nHost: h\r\n" + key + body, "status=400 ");
  refused("GET /v1/streams/hush HTTP/1.1\r\nHost: h\r\n" + key + "\r\n",
          "path=/v1/streams/{id} status=");
  refused("GET /v1/models HTTP/1.1\r\nHost: h\r\nX: " + std::string(70000, 'x'), "status=431 ");
  refused("POST /tokenize HTTP/1.1\r\nHost: h\r\n" + key +
              "Content-Type: application/json\r\nContent-Length: 999999999\r\n\r\n",
          "method=POST path=- status=413 ");
  refused("GET /health HTTP/1.1\r\nHost: h\r\n\r\n", "path=/health status=200 ");

  reopen();  // a client that does not wait
  post("/v1/completions", R"({"prompt":"x"})", key);
  session_.reset();
  line = logged();
  BOOST_TEST(has(line, "path=/v1/completions status=499 "), line);

  config.log_requests = false;
  get("/v1/models", key);
  BOOST_TEST(logged() == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
