#pragma once
// A session without a socket, on an engine whose outputs the test decides.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/session.hpp"
#include "tests/runtime/http/fake_engine.hpp"

namespace troupe {

/// A service and one session, with clocks that stand still.
struct SessionFixture {
  SessionFixture() {
    config.model_names = {"m", "alias"};
    config.model_root = "models/m";
    config.version = "1.2";
    config.defaults.max_model_len = 100;
    config.defaults.vocab_size = 1000;
  }

  HttpSession& session() {
    if (!service) {
      ServiceEnvironment environment{.wall_clock = [] { return 1700000000.5; },
                                     .steady_clock = [this] { return now; },
                                     .random = [] { return std::uint64_t{0xabc}; },
                                     .post = [](std::function<void()> function) { function(); },
                                     .exchange_ended = {},
                                     .work = work};
      service = std::make_unique<Service>(config, environment, counters, engine, metrics);
    }
    if (!session_) reopen();
    return *session_;
  }
  void reopen() {
    session_ = std::make_unique<HttpSession>(
        *service, limits, [] { return 1700000000.5; }, [] {}, refuse_all, "9.9.9.9:1");
  }

  /// What the session says next, until it is silent: a client that reads everything at once.
  std::string drain_output() {
    std::string all, piece;
    while (session().take_output(piece)) {
      all += piece;
      session().sent();
    }
    return all;
  }
  std::string exchange(const std::string& bytes) {
    session().receive(bytes);
    return drain_output();
  }
  std::string post(const std::string& path, const std::string& body,
                   const std::string& headers = "") {
    return exchange("POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" +
                    headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string get(const std::string& path, const std::string& headers = "") {
    return exchange("GET " + path + " HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n");
  }
  void deliver(RequestOutput output) {
    RequestOutputs outputs = step(std::move(output));
    service->deliver(outputs);
  }
  RequestId last_id() { return engine.wait_submitted(1).back().id; }

  ServiceConfig config;
  HttpLimits limits;
  bool refuse_all = false;
  double now = 1;
  std::function<void(Work)> work;  ///< none: at once
  ServiceCounters counters;
  FakeEngine engine;
  EngineMetrics metrics{"m", 100};
  std::unique_ptr<Service> service;
  std::unique_ptr<HttpSession> session_;
};

inline bool starts(const std::string& answer, int status) {
  return answer.starts_with("HTTP/1.1 " + std::to_string(status) + " ");
}
inline bool has(const std::string& answer, std::string_view part) {
  return answer.find(part) != std::string::npos;
}
inline std::string body_of(const std::string& answer) {
  return answer.substr(answer.find("\r\n\r\n") + 4);
}
/// The JSON texts of a chunked event stream.
inline std::vector<std::string> events_of(const std::string& bytes) {
  std::vector<std::string> events;
  for (std::size_t at = 0; (at = bytes.find("data: ", at)) != std::string::npos;) {
    at += 6;
    events.push_back(bytes.substr(at, bytes.find("\n\n", at) - at));
  }
  return events;
}

}  // namespace troupe
