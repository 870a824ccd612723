#pragma once
// A server with a real socket, and a client of it.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/http/server.hpp"
#include "tests/runtime/http/fake_engine.hpp"

namespace troupe {

/// A blocking client; a read that takes longer than two minutes ends as if the server had closed.
class Client {
 public:
  explicit Client(std::uint16_t port, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience{120, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    BOOST_REQUIRE(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~Client() { hang_up(); }
  Client(const Client&) = delete;

  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void send(const std::string& bytes) const {
    BOOST_REQUIRE(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(bytes.size()));
  }
  /// The server may have closed the connection.
  void send_if_open(const std::string& bytes) const {
    static_cast<void>(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  void post(const std::string& path, const std::string& body) const {
    send("POST " + path +
         " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void get(const std::string& path) const { send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n"); }
  /// Everything up to and including `end`, or up to the end of the connection.
  std::string read_until(const std::string& end) {
    while (buffer_.find(end) == std::string::npos) {
      char bytes[4096];
      const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
      if (count <= 0) return std::exchange(buffer_, {});
      buffer_.append(bytes, static_cast<std::size_t>(count));
    }
    const std::size_t size = buffer_.find(end) + end.size();
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return text;
  }
  /// Sends `bytes` again and again until an answer is there, the connection has ended or
  /// `max_bytes` have left; returns how many have.
  std::size_t flood(const std::string& bytes, std::size_t max_bytes) const {
    std::size_t sent = 0;
    for (pollfd ready{fd_, POLLIN, 0}; sent < max_bytes && poll(&ready, 1, 0) == 0;) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    return sent;
  }
  /// Sends `byte` every 5 ms, until an answer is there or the connection has ended; false: neither
  /// came within two minutes.
  bool drip(char byte) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (pollfd ready{fd_, POLLIN, 0}; poll(&ready, 1, 5) == 0;) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (::send(fd_, &byte, 1, MSG_NOSIGNAL) != 1) break;
    }
    return true;
  }
  [[nodiscard]] pollfd readable() const { return {fd_, POLLIN, 0}; }
  bool at_end() {
    char byte = 0;
    errno = 0;
    return recv(fd_, &byte, 1, 0) <= 0 && errno != EAGAIN;
  }

 private:
  int fd_;
  std::string buffer_;
};

struct ServerFixture {
  ServerFixture() {
    config.options.port = 0;
    config.service.model_names = {"m"};
    config.service.defaults.max_model_len = 100;
    config.service.defaults.vocab_size = 1000;
  }
  Server& server() {
    if (!server_) {
      const std::lock_guard lock(starting_);
      auto started = Server::start(config, engine, metrics);
      BOOST_REQUIRE(started.ok());
      server_ = *std::move(started);
    }
    return *server_;
  }
  /// For the engine's threads: a resumed batch submits before start() has returned.
  Server& started() {
    const std::lock_guard lock(starting_);
    return *server_;
  }
  /// Answers every request at once with `count` deltas.
  void answer_with(int count) {
    engine.react([this, count](const GenerateRequest& request) {
      for (int i = 0; i < count; ++i) {
        const bool last = i + 1 == count;
        started().deliver(step(text_output(
            request.id, "t", {i}, last ? std::optional(FinishReason::kLength) : std::nullopt)));
      }
    });
  }

  ServerConfig config;
  FakeEngine engine;
  EngineMetrics metrics{"m", 100};
  std::mutex starting_;
  std::unique_ptr<Server> server_;
};

}  // namespace troupe
