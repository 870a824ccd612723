// bench_cache_server lm|redis PORT exist|get|put CLIENTS VALUE_BYTES SECONDS [PIPELINE]: a closed
// loop of clients on one thread against a server on this host, each with PIPELINE requests at a
// time. Prints requests/s, the 99th percentile of their latency in microseconds, and MB/s of
// values.
//
// bench_cache_server limit PORT: serves lm:// with one value of the size that was put last, which
// it never copies and never stores: what any server can reach through the loopback device.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"

namespace {

using namespace troupe::lmcache;
using Clock = std::chrono::steady_clock;

constexpr int kNumKeys = 64;
constexpr std::size_t kMaxHeadBytes = 64;  // of a reply, without its value

struct Plan {
  bool redis = false;
  std::string operation;
  std::size_t value_bytes = 0;
  int pipeline = 1;
};

std::string key_of(int number) {
  return "model@1@0@" + std::to_string(1000 + number) + "@bfloat16";
}

std::string redis_command(const std::vector<std::string_view>& words) {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string_view word : words)
    text.append("$").append(std::to_string(word.size())).append("\r\n").append(word).append("\r\n");
  return text;
}

std::string lm_request(LmCommand command, const std::string& key, std::string_view value = {}) {
  const auto head = pack_lm_request(
      {.command = command, .length = static_cast<std::int32_t>(value.size()), .key = key});
  return std::string(head.data(), head.size()).append(value);
}

/// A put has no reply of its own in lm://: one of HEALTH follows it.
std::string request_of(const Plan& plan, const std::string& operation, int number) {
  const std::string key = key_of(number % kNumKeys);
  const std::string value = operation == "put" ? std::string(plan.value_bytes, 'v') : std::string();
  if (plan.redis)
    return operation == "put"   ? redis_command({"SET", key, value})
           : operation == "get" ? redis_command({"GET", key})
                                : redis_command({"EXISTS", key});
  if (operation == "put")
    return lm_request(LmCommand::kPut, key, value) + lm_request(LmCommand::kHealth, key);
  return lm_request(operation == "get" ? LmCommand::kGet : LmCommand::kExist, key);
}

/// Of a reply that begins with these bytes; 0: not yet known.
std::size_t reply_bytes(const Plan& plan, std::string_view bytes) {
  if (!plan.redis) {
    if (bytes.size() < kLmReplyBytes) return 0;
    std::int32_t length = 0;
    std::memcpy(&length, bytes.data() + sizeof(length), sizeof(length));
    return kLmReplyBytes + static_cast<std::size_t>(length);
  }
  const std::size_t line = bytes.find("\r\n");
  if (line == std::string_view::npos) return 0;
  long length = 0;
  std::from_chars(bytes.data() + 1, bytes.data() + line, length);
  return bytes[0] != '$' || length < 0 ? line + 2 : line + 2 + static_cast<std::size_t>(length) + 2;
}

struct Client {
  int socket = -1;
  int num_replies = 0;  // that are missing
  std::string head;     // the first bytes of the next one
  std::size_t num_received = 0;
  std::size_t num_expected = 0;
  Clock::time_point since;
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void set_no_delay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int connect_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(port);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    die("connect");
  set_no_delay(socket);
  return socket;
}

/// flags: of send().
void send_all(int socket, std::string_view bytes, int flags) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), flags | MSG_NOSIGNAL);
    if (count <= 0) die("send");
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

class Load {
 public:
  Load(Plan plan, int port, int num_clients) : plan_(std::move(plan)), poll_(::epoll_create1(0)) {
    clients_.resize(static_cast<std::size_t>(num_clients));
    for (Client& client : clients_) client.socket = connect_to(port);
    // What is read must be there.
    for (int i = 0; i < kNumKeys; ++i) filling_.push_back(request_of(plan_, "put", i));
    for (const std::string& request : filling_) run_one(clients_[0], request);
    for (int i = 0; i < kNumKeys; ++i) {
      std::string& requests = requests_.emplace_back();
      for (int j = 0; j < plan_.pipeline; ++j)
        requests += request_of(plan_, plan_.operation, i + j);
    }
    for (Client& client : clients_) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = &client;
      ::epoll_ctl(poll_, EPOLL_CTL_ADD, client.socket, &event);
    }
  }

  void run(double seconds) {
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration<double>(seconds);
    for (Client& client : clients_) start(client, next_requests(), plan_.pipeline);
    std::vector<epoll_event> events(clients_.size());
    while (Clock::now() < end) {
      const int count = ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), 1000);
      for (int i = 0; i < count; ++i) {
        Client& client = *static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (!receive(client, MSG_DONTWAIT)) continue;
        latencies_.push_back(std::chrono::duration<double>(Clock::now() - client.since).count());
        start(client, next_requests(), plan_.pipeline);
      }
    }
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    std::sort(latencies_.begin(), latencies_.end());
    const auto num_latencies = static_cast<double>(latencies_.size());
    const double p99 =
        latencies_.empty() ? 0 : latencies_[static_cast<std::size_t>(0.99 * (num_latencies - 1))];
    const double done = num_latencies * plan_.pipeline;
    const double value = plan_.operation == "exist" ? 0 : static_cast<double>(plan_.value_bytes);
    std::printf("%.0f %.0f %.1f\n", done / took, p99 * 1e6, done / took * value / 1e6);
  }

 private:
  const std::string& next_requests() { return requests_[next_++ % requests_.size()]; }
  /// Sends whole requests: the server reads them before it replies.
  void start(Client& client, const std::string& requests, int num_requests) {
    client.since = Clock::now();
    client.num_replies = num_requests;
    send_all(client.socket, requests, 0);
  }
  /// True: all replies are complete.
  bool receive(Client& client, int flags) {
    while (client.num_replies > 0) {
      const ssize_t count = ::recv(client.socket, buffer_.data(), buffer_.size(), flags);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (count <= 0) die("recv");
      take(client, {buffer_.data(), static_cast<std::size_t>(count)});
    }
    return true;
  }
  void take(Client& client, std::string_view bytes) {
    while (!bytes.empty()) {
      if (client.num_expected == 0) {
        client.num_received = client.head.size();
        client.head.append(bytes.substr(0, kMaxHeadBytes - client.head.size()));
        client.num_expected = reply_bytes(plan_, client.head);
        if (client.num_expected == 0) return;
      }
      const std::size_t count = std::min(bytes.size(), client.num_expected - client.num_received);
      client.num_received += count;
      bytes.remove_prefix(count);
      if (client.num_received < client.num_expected) return;
      --client.num_replies;
      client.head.clear();
      client.num_expected = 0;
    }
  }
  void run_one(Client& client, const std::string& request) {
    start(client, request, 1);
    receive(client, 0);
  }

  const Plan plan_;
  const int poll_;
  std::vector<Client> clients_;
  std::vector<std::string> filling_;
  std::vector<std::string> requests_;
  std::size_t next_ = 0;
  std::vector<char> buffer_ = std::vector<char>(1 << 20);
  std::vector<double> latencies_;
};

/// The server of `limit`: one thread, one buffer for all values.
class BareServer {
 public:
  explicit BareServer(int port) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = loopback(port);
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) die("bind");
    if (::listen(listener_, SOMAXCONN) != 0) die("listen");
    watch(listener_, nullptr);
  }

  [[noreturn]] void run() {
    std::vector<epoll_event> events(64);
    for (;;) {
      const int count = ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        auto* const connection =
            static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (connection != nullptr) {
          serve(*connection);
          continue;
        }
        const int socket = ::accept(listener_, nullptr, nullptr);
        if (socket < 0) die("accept");
        set_no_delay(socket);
        watch(socket, new Connection{.socket = socket});
      }
    }
  }

 private:
  struct Connection {
    int socket = -1;
    std::string head;            // of the next request
    std::size_t num_unread = 0;  // bytes of a value
  };

  void watch(int socket, Connection* connection) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = connection;
    ::epoll_ctl(poll_, EPOLL_CTL_ADD, socket, &event);
  }

  void serve(Connection& connection) {
    const ssize_t count =
        ::recv(connection.socket, received_.data(), received_.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      ::close(connection.socket);
      delete &connection;
      return;
    }
    std::string replies;
    std::string_view bytes(received_.data(), static_cast<std::size_t>(count));
    while (!bytes.empty()) {
      if (connection.num_unread > 0) {
        const std::size_t part = std::min(bytes.size(), connection.num_unread);
        connection.num_unread -= part;
        bytes.remove_prefix(part);
        continue;
      }
      std::string& head = connection.head;
      const std::size_t part = std::min(bytes.size(), kLmRequestBytes - head.size());
      head.append(bytes.substr(0, part));
      bytes.remove_prefix(part);
      if (head.size() < kLmRequestBytes) break;
      const LmRequest request =
          parse_lm_request(std::span<const char, kLmRequestBytes>(head.data(), kLmRequestBytes))
              .value();
      head.clear();
      if (request.command == LmCommand::kPut) {
        connection.num_unread = static_cast<std::size_t>(request.length);
        value_.resize(connection.num_unread);
        continue;
      }
      const bool has_value = request.command == LmCommand::kGet;
      const auto reply =
          pack_lm_reply({.code = LmCode::kSuccess,
                         .length = has_value ? static_cast<std::int32_t>(value_.size()) : 0});
      replies.append(reply.data(), reply.size());
      if (!has_value) continue;
      send_all(connection.socket, replies, MSG_MORE);
      replies.clear();
      send_all(connection.socket, value_, 0);
    }
    send_all(connection.socket, replies, 0);
  }

  const int listener_;
  const int poll_ = ::epoll_create1(0);
  std::vector<char> received_ = std::vector<char>(1 << 20);
  std::string value_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "limit") BareServer(std::atoi(argv[2])).run();
  if (argc != 7 && argc != 8) {
    std::fprintf(
        stderr,
        "usage: bench_cache_server lm|redis PORT exist|get|put CLIENTS VALUE_BYTES SECONDS "
        "[PIPELINE]\n       bench_cache_server limit PORT\n");
    return 2;
  }
  const Plan plan{.redis = std::string_view(argv[1]) == "redis",
                  .operation = argv[3],
                  .value_bytes = std::strtoull(argv[5], nullptr, 10),
                  .pipeline = argc == 8 ? std::atoi(argv[7]) : 1};
  Load(plan, std::atoi(argv[2]), std::atoi(argv[4])).run(std::strtod(argv[6], nullptr));
  return 0;
}
