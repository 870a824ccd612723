// Clients that want more of a server's time and memory than is theirs, over real sockets; and what
// a server's own faults do to its clients.

#include <boost/test/unit_test.hpp>

#include "tests/runtime/http/server_fixture.hpp"

namespace troupe {
namespace {

constexpr const char* kChunked =
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

double seconds_of(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

BOOST_FIXTURE_TEST_SUITE(hostile_clients, ServerFixture)

BOOST_AUTO_TEST_CASE(a_chunked_body_is_cut_off_at_the_limit_whatever_it_consists_of) {
  config.options.max_body_bytes = 1 << 20;
  constexpr std::size_t kMaxBytes = 200 << 20;
  const std::string kilobyte(1024, '1');
  struct Flood {
    const char* what;
    std::string begin, again;
  };
  for (const Flood& flood : {Flood{"data", "", "400\r\n" + kilobyte + "\r\n"},
                             Flood{"extensions", "", "1;" + kilobyte + "\r\n \r\n"},
                             Flood{"one extension", "1;", kilobyte}, Flood{"a size", "", kilobyte},
                             Flood{"spaces behind a size", "1", std::string(1024, ' ')},
                             Flood{"trailers", "0\r\n", "T: " + kilobyte + "\r\n"},
                             Flood{"one trailer", "0\r\nT: ", kilobyte},
                             Flood{"the name of a trailer", "0\r\n", kilobyte},
                             Flood{"tiny chunks", "", "1\r\n \r\n1\r\n \r\n"}}) {
    BOOST_TEST_CONTEXT(flood.what) {
      Client client(server().port());
      client.send(kChunked + flood.begin);
      // The socket buffers of both ends hold some unread megabytes.
      BOOST_TEST(client.flood(flood.again, kMaxBytes) < 32u << 20);
      const std::string answer = client.read_until("}}");
      BOOST_TEST((answer.starts_with("HTTP/1.1 413 ") || answer.starts_with("HTTP/1.1 400 ")),
                 answer);
      BOOST_TEST(answer.find("Connection: close\r\n") != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_body_that_drips_is_ended) {
  config.options.body_timeout_s = 0.3;
  for (const char* head : {"Content-Length: 100000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1;",
                           "Transfer-Encoding: chunked\r\n\r\n0\r\nT: ",
                           "Transfer-Encoding: chunked\r\n\r\n10000\r\n"}) {
    BOOST_TEST_CONTEXT(head) {
      Client client(server().port());
      client.send(std::string("POST /v1/completions HTTP/1.1\r\nHost: h\r\n") +
                  "Content-Type: application/json\r\n" + head);
      BOOST_TEST(client.drip('x'));
      const std::string answer = client.read_until("408}}");
      BOOST_TEST(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), answer);
      BOOST_TEST(client.at_end());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_slow_body_that_moves_is_taken) {
  config.options.body_timeout_s = 0.3;
  const std::string body = R"({"prompt":"a","user":")" + std::string(40000, 'x') + R"("})";
  std::string answer;
  do {  // again, when this thread or the server's was stopped for so long
    Client client(server().port());
    client.send(
        "POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 30000));
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // what has come allows 1.8 s more
    client.send_if_open(body.substr(30000));
    answer = client.read_until("}");
  } while (answer.starts_with("HTTP/1.1 408 "));
  BOOST_TEST(answer.find("[97]") != std::string::npos, answer);
}

BOOST_AUTO_TEST_CASE(a_body_that_takes_long_to_parse_delays_no_other_request) {
  config.options.max_body_bytes = 64 << 20;
  std::string body = R"({"prompt":[)";
  while (body.size() < std::size_t{30} << 20) body += R"({"a":[1,2,{}]},{},"x",-1,[[]],)";
  body += "]";
  Client slow(server().port()), quick(server().port());
  slow.post("/v1/completions", body);
  int num_answers = 0;
  double longest = 0;
  pollfd answered = slow.readable();
  while (poll(&answered, 1, 0) == 0 && num_answers < 100000) {
    longest = std::max(longest, seconds_of([&] {
                         quick.get("/health");
                         BOOST_TEST(quick.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 "));
                       }));
    ++num_answers;
  }
  BOOST_TEST_MESSAGE("/health: " << num_answers << " answers, the slowest after " << longest
                                 << " s");
  if (std::getenv("TROUPE_TEST_TIMES") != nullptr) BOOST_TEST(longest < 1);
  BOOST_TEST(slow.read_until("}}").starts_with("HTTP/1.1 400 "));
}

BOOST_AUTO_TEST_CASE(an_exception_ends_its_request_at_once_and_no_other) {
  Client other(server().port());
  other.post("/v1/completions", R"({"prompt":"b"})");
  const RequestId waiting = engine.wait_submitted(1).front().id;
  const auto check_failed = [&](const char* path, const std::string& body) {
    BOOST_TEST_CONTEXT(path << ' ' << body.substr(0, 100)) {
      Client client(server().port());
      std::string answer;
      client.post(path, body);
      answer = client.read_until("500}}");
      BOOST_TEST(answer.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), answer);
      BOOST_TEST(answer.find("Connection: close\r\n") != std::string::npos);
      BOOST_TEST(answer.find("Content-Type: application/json\r\n") != std::string::npos);
      BOOST_TEST(answer.find(R"("type":"InternalServerError")") != std::string::npos);
      BOOST_TEST(client.at_end());
    }
  };
  const std::string padding(100000, 'x');
  const std::string bodies[] = {R"({"prompt":"a"})", R"({"prompt":"a","stream":true})",
                                R"({"prompt":"a","user":")" + padding + R"("})"};
  // While it is handled.
  engine.react([](const GenerateRequest&) { throw std::runtime_error("by the test"); });
  for (const std::string& body : bodies) check_failed("/v1/completions", body);
  engine.react([](const GenerateRequest&) { throw 7; });
  check_failed("/v1/completions", bodies[0]);
  // When its output comes: of a sample that it does not have.
  engine.react([this](const GenerateRequest& request) {
    server().deliver(step(text_output(request.id, "x", {1}, FinishReason::kStop, 7)));
  });
  for (const std::string& body : bodies) check_failed("/v1/completions", body);
  // When a reply comes, or is asked for.
  engine.fail_renders(true);
  check_failed("/tokenize", bodies[0]);
  engine.react({});
  server().deliver(step(text_output(waiting, "still there", {1}, FinishReason::kStop)));
  BOOST_TEST(other.read_until("}").find("still there") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_stream_that_cannot_continue_ends) {
  Client client(server().port());
  client.post("/v1/completions", R"({"prompt":"a","stream":true})");
  const RequestId id = engine.wait_submitted(1).back().id;
  server().deliver(step(text_output(id, "x", {1})));
  BOOST_TEST(client.read_until("\n\n").starts_with("HTTP/1.1 200 "));
  server().deliver(step(text_output(id, "x", {1}, std::nullopt, 7)));
  BOOST_TEST(!client.read_until("0\r\n\r\n").ends_with("0\r\n\r\n"));
  BOOST_TEST(client.at_end());
  BOOST_TEST((engine.wait_aborted(1) == std::vector<RequestId>{id}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
