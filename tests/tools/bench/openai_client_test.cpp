#include "tools/bench/openai_client.hpp"

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

namespace troupe::tools {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chunked(const std::string& text) {
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return size + text + "\r\n";
}

std::string answer_of(const std::string& text) {
  return std::string(kStreamHead) +
         chunked("data: {\"choices\":[{\"text\":\"" + text + "\",\"finish_reason\":null}]}\n\n") +
         chunked(
             "data: {\"choices\":[{\"text\":\"!\",\"finish_reason\":\"stop\"}]}\n\n"
             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,") +
         chunked("\"completion_tokens\":2}}\n\ndata: [DONE]\n\n") + "0\r\n\r\n";
}

/// A server on a port of its own that answers each connection, on a thread each, with
/// answer(request head and body). It counts how many it had open at once.
class FakeServer {
 public:
  using Answer = std::function<std::string(const std::string& request)>;

  explicit FakeServer(Answer answer)
      : answer_(std::move(answer)), acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this] { accept(); });
  }
  ~FakeServer() {
    stopping_ = true;
    boost::system::error_code ignored;
    tcp::socket wake(context_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (std::thread& thread : connections_) thread.join();
  }

  [[nodiscard]] ServerAddress address() const {
    return {"127.0.0.1", std::to_string(acceptor_.local_endpoint().port()), ""};
  }
  [[nodiscard]] int most_open() const { return most_open_; }

 private:
  void accept() {
    for (;;) {
      tcp::socket socket = acceptor_.accept();
      if (stopping_) return;
      connections_.emplace_back([this, peer = std::move(socket)]() mutable { serve(peer); });
    }
  }

  void serve(tcp::socket& socket) {
    {
      const std::lock_guard lock(mutex_);
      most_open_ = std::max(most_open_.load(), ++num_open_);
    }
    std::string request;
    boost::system::error_code ignored;
    const std::size_t head =
        asio::read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n", ignored);
    std::size_t body = 0;
    if (const std::size_t at = request.find("Content-Length: "); at != std::string::npos) {
      body = std::stoul(request.substr(at + 16));
    }
    if (request.size() < head + body) {
      asio::read(socket, asio::dynamic_buffer(request),
                 asio::transfer_exactly(head + body - request.size()), ignored);
    }
    const std::string answer = answer_(request);
    {
      const std::lock_guard lock(mutex_);
      --num_open_;
    }
    asio::write(socket, asio::buffer(answer), ignored);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
  }

  Answer answer_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  std::thread thread_;
  std::vector<std::thread> connections_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  int num_open_ = 0;
  std::atomic<int> most_open_{0};
};

Load load_of(const FakeServer& server, std::vector<std::string> bodies) {
  Load load;
  load.server = server.address();
  load.path = "/v1/completions";
  load.headers = {{"Authorization", "Bearer key"}};
  load.send_times.resize(bodies.size());
  load.bodies = std::move(bodies);
  return load;
}

BOOST_AUTO_TEST_CASE(urls_are_taken_apart) {
  BOOST_TEST((*parse_url("http://host:81/base/") == ServerAddress{"host", "81", "/base"}));
  BOOST_TEST((*parse_url("http://host") == ServerAddress{"host", "80", ""}));
  BOOST_TEST((*parse_url("http://[::1]:8000") == ServerAddress{"::1", "8000", ""}));
  BOOST_TEST((*parse_url("https://host/base") == ServerAddress{"host", "443", "/base", true}));
  for (const char* url : {"host:80", "http://", "http://:80", "http://a:0", "http://a:x",
                          "http://a:70000", "https://", "ftp://a"}) {
    BOOST_TEST(!parse_url(url).ok(), url);
  }
}

BOOST_AUTO_TEST_CASE(an_ipv6_address_stands_in_brackets) {
  for (const char* url :
       {"http://[::1]:8000/base", "https://[::1]:8000", "http://127.0.0.1:80", "http://host:81"})
    BOOST_TEST(parse_url(url)->url() == url);
  BOOST_TEST(parse_url("http://[::1]")->authority() == "[::1]:80");
}

BOOST_AUTO_TEST_CASE(every_request_gets_its_own_answer) {
  const FakeServer server([](const std::string& request) {
    if (request.find("POST /v1/completions HTTP/1.1\r\n") != 0 ||
        request.find("Authorization: Bearer key\r\n") == std::string::npos) {
      return std::string("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    }
    return answer_of(request.substr(request.find("\r\n\r\n") + 4));
  });
  Load load = load_of(server, {"a", "b", "c", "d"});
  std::vector<std::int64_t> progress;
  load.on_progress = [&](std::int64_t num_done) { progress.push_back(num_done); };
  const LoadResult result = run_load(load);
  for (std::size_t i = 0; i < load.bodies.size(); ++i) {
    const RequestRecord& record = result.records[i];
    BOOST_TEST(record.success, record.error);
    BOOST_TEST(record.text == load.bodies[i] + "!");
    BOOST_TEST(record.num_prompt_tokens == 5);
    BOOST_TEST(record.num_output_tokens == 2);
    BOOST_TEST((record.first_token > 0 && record.first_token <= record.latency));
    BOOST_TEST(record.start + record.latency <= result.duration);
  }
  BOOST_TEST(progress == (std::vector<std::int64_t>{1, 2, 3, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(no_more_requests_run_at_once_than_allowed) {
  const FakeServer server([](const std::string&) { return answer_of("x"); });
  Load load = load_of(server, std::vector<std::string>(20, "body"));
  load.max_concurrency = 2;
  const LoadResult result = run_load(load);
  BOOST_TEST(std::all_of(result.records.begin(), result.records.end(),
                         [](const RequestRecord& record) { return record.success; }));
  BOOST_TEST(server.most_open() <= 2);
  BOOST_TEST(result.records.back().queued > 0);
}

BOOST_AUTO_TEST_CASE(what_goes_wrong_with_a_request_is_in_its_record) {
  const FakeServer server([](const std::string& request) -> std::string {
    switch (request.back()) {
      case 's':
        return "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
      case 'c':
        return std::string(kStreamHead) + chunked("data: {\"choi");
      case 'n':
        return "";
      default:
        return answer_of("fine");
    }
  });
  const LoadResult result = run_load(load_of(server, {"s", "c", "n", "ok"}));
  BOOST_TEST(result.records[0].error == "HTTP 503: busy");
  BOOST_TEST(!result.records[1].success);
  BOOST_TEST(!result.records[1].error.empty());
  BOOST_TEST(!result.records[2].success);
  BOOST_TEST(!result.records[2].error.empty());
  BOOST_TEST(result.records[3].success);
}

BOOST_AUTO_TEST_CASE(a_get_returns_the_body_or_says_what_went_wrong) {
  std::optional<ServerAddress> gone;
  {
    const FakeServer server([](const std::string& request) {
      return request.starts_with("GET /v1/models ")
                 ? std::string("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                 : std::string("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone");
    });
    BOOST_TEST(*http_get(server.address(), "/v1/models", {}, 10) == "{}");
    const auto missing = http_get(server.address(), "/other", {}, 10);
    BOOST_TEST(missing.error().message.ends_with("/other: HTTP 404: none"));
    gone = server.address();
  }
  const auto refused = http_get(*gone, "/v1/models", {}, 10);
  BOOST_TEST((refused.error().code == ErrorCode::kUnavailable));
}

}  // namespace
}  // namespace troupe::tools
