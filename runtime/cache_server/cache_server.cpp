#include "runtime/cache_server/cache_server.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/event_fd.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache_server/lm_session.hpp"
#include "runtime/http/request_parser.hpp"

namespace troupe {
namespace {

constexpr int kTickMs = 1000;
/// How long a thread polls after an event before it sleeps: a client with one request at a time
/// sends the next one sooner than a thread wakes up.
constexpr double kBusyPollS = 50e-6;
constexpr std::size_t kTlsPiece = 16 << 10;
/// Of one connection, before others get their turn.
constexpr int kMaxReadsInARow = 64;
constexpr std::uint32_t kMaxHttpHeaderBytes = 16 << 10;

Error address_error(const std::string& host, std::uint16_t port, const std::string& reason) {
  return {ErrorCode::kIo, "cannot listen on " + host + ":" + std::to_string(port) + ": " + reason,
          "port"};
}

Result<FileDescriptor> listen_on(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                   std::to_string(port).c_str(), &hints, &found);
  if (failed != 0)
    return Error{ErrorCode::kInvalidArgument, "host " + host + ": " + ::gai_strerror(failed),
                 "host"};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0)
    return address_error(host, port, std::strerror(errno));
  return socket;
}

std::uint16_t port_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// What all threads share.
struct Shared {
  explicit Shared(CacheServerConfig given)
      : config(std::move(given)),
        lm(registry),
        num_connections(registry.gauge("troupe_cache_connections", "Open connections.", {})) {}

  CacheServerConfig config;
  Registry registry;
  LmMetrics lm;
  Metric& num_connections;
  std::unique_ptr<CacheStore> store;
};

/// Bytes in and out of one client: what a thread drives.
class CacheClient {
 public:
  virtual ~CacheClient() = default;
  [[nodiscard]] virtual std::span<char> input() = 0;
  virtual void received(std::size_t num_bytes) = 0;
  [[nodiscard]] virtual LmSession::Output output() const = 0;
  virtual void sent(std::size_t num_bytes) = 0;
  /// Waits for the peer in the middle of something.
  [[nodiscard]] virtual bool is_waiting() const = 0;
  [[nodiscard]] virtual bool ends() const = 0;
};

class LmClient final : public CacheClient {
 public:
  LmClient(Shared& shared, LmSession::Load load)
      : session(*shared.store, shared.config.tokens, shared.lm, std::move(load)) {}
  std::span<char> input() override { return session.input(); }
  void received(std::size_t num_bytes) override { session.received(num_bytes); }
  LmSession::Output output() const override { return session.output(); }
  void sent(std::size_t num_bytes) override { session.sent(num_bytes); }
  bool is_waiting() const override { return session.in_request() || !session.output().empty(); }
  bool ends() const override {
    // Requests before it are answered.
    if (session.problem().empty() || !session.output().empty()) return false;
    log_warning("a client of the cache server sent no request", kv("reason", session.problem()));
    return true;
  }

  LmSession session;
};

/// GET /metrics and /health, one request per connection.
class HttpClient final : public CacheClient {
 public:
  explicit HttpClient(Shared& shared)
      : shared_(shared), parser_({.max_body_bytes = 0, .max_header_bytes = kMaxHttpHeaderBytes}) {}

  std::span<char> input() override {
    return answer_.empty() ? std::span(received_) : std::span<char>();
  }
  void received(std::size_t num_bytes) override {
    static_cast<void>(parser_.feed({received_.data(), num_bytes}));
    if (parser_.state() == RequestParser::State::kRefused) {
      answer(parser_.status(), parser_.problem() + "\n");
    } else if (parser_.state() != RequestParser::State::kHead) {
      const HttpRequest& head = parser_.head();
      const std::string path = head.target.substr(0, head.target.find('?'));
      if (head.method != "GET")
        answer(405, "only GET\n");
      else if (path == "/metrics")
        answer(200, shared_.registry.text());
      else if (path == "/health")
        answer(200, "");
      else
        answer(404, "there are /metrics and /health\n");
    }
  }
  LmSession::Output output() const override { return {std::span(answer_).subspan(num_sent_), {}}; }
  void sent(std::size_t num_bytes) override { num_sent_ += num_bytes; }
  bool is_waiting() const override { return true; }
  bool ends() const override { return !answer_.empty() && num_sent_ == answer_.size(); }

 private:
  void answer(int status, const std::string& body) {
    answer_ =
        "HTTP/1.1 " + std::to_string(status) + (status == 200 ? " OK" : " Error") +
        "\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  Shared& shared_;
  RequestParser parser_;
  std::array<char, 4096> received_;
  std::string answer_;
  std::size_t num_sent_ = 0;
};

struct CacheConnection {
  FileDescriptor socket;
  std::unique_ptr<TlsSession> tls;  // null: plain
  std::unique_ptr<CacheClient> client;
  std::uint32_t events = 0;  // that are watched
  double waits_since = 0;    // for the peer; 0: it does not

  /// nullopt: the connection has ended; 0: it is not ready.
  std::optional<std::size_t> read(std::span<char> into) {
    if (tls != nullptr) return tls->read(into);
    const ssize_t count = ::recv(socket.get(), into.data(), into.size(), 0);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    return std::nullopt;
  }
  std::optional<std::size_t> write(const LmSession::Output& output) {
    if (tls != nullptr) {
      const std::span<const char> piece = output.head.empty() ? output.body : output.head;
      return tls->write(piece.first(std::min(piece.size(), kTlsPiece)));
    }
    std::array<iovec, 2> pieces = {
        iovec{const_cast<char*>(output.head.data()), output.head.size()},
        iovec{const_cast<char*>(output.body.data()), output.body.size()}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t count = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN || errno == EINTR) return 0;
    return std::nullopt;
  }
};

/// One thread: its connections, and what others give it to do.
class CacheThread {
 public:
  explicit CacheThread(Shared& shared) : shared_(shared), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    watch(wake_.get(), EPOLLIN, EPOLL_CTL_ADD);
  }
  ~CacheThread() { stop(); }

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    post([this] { ends_ = true; });
    thread_.join();
    shared_.num_connections.add(-static_cast<double>(connections_.size()));
    connections_.clear();
  }
  /// Any thread.
  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.signal();
  }
  /// Calls `accept` when the socket has a connection. Before start().
  void listen(int socket, std::function<void()> accept) {
    listeners_.emplace(socket, std::move(accept));
    watch(socket, EPOLLIN, EPOLL_CTL_ADD);
  }
  /// On this thread.
  void add(FileDescriptor socket, bool http) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    const int number = socket.get();
    auto connection = std::make_shared<CacheConnection>();
    connection->socket = std::move(socket);
    connection->waits_since = http ? now_seconds() : 0;
    if (http) {
      connection->client = std::make_unique<HttpClient>(shared_);
    } else {
      if (shared_.config.tls != nullptr)
        connection->tls = std::make_unique<TlsSession>(shared_.config.tls->context(), number,
                                                       Session::Side::kAccepts);
      connection->client = std::make_unique<LmClient>(
          shared_, [this, weak = std::weak_ptr(connection)](const CacheKey& key) {
            shared_.store->load(key, [this, weak](CacheValuePtr value) {
              post([this, weak, value = std::move(value)]() mutable {
                const auto waiting = weak.lock();
                if (waiting == nullptr) return;
                static_cast<LmClient&>(*waiting->client).session.loaded(std::move(value));
                drive(*waiting);
              });
            });
          });
    }
    connection->events = EPOLLIN;
    watch(number, EPOLLIN, EPOLL_CTL_ADD);
    connections_[number] = std::move(connection);
  }

 private:
  void watch(int file, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.fd = file;
    ::epoll_ctl(epoll_.get(), operation, file, &event);
  }

  void run() {
    std::array<epoll_event, 256> events;
    double next_tick = now_seconds() + kTickMs / 1000.0;
    int count = 0;
    while (!ends_) {
      count = wait(events, /*is_busy=*/count > 0);
      for (int i = 0; i < count; ++i) {
        const int file = events[static_cast<std::size_t>(i)].data.fd;
        if (file == wake_.get()) {
          run_jobs();
        } else if (const auto listener = listeners_.find(file); listener != listeners_.end()) {
          listener->second();
        } else if (const auto found = connections_.find(file); found != connections_.end()) {
          const std::shared_ptr<CacheConnection> connection = found->second;
          // A client that hangs up while its value is loaded is not read any more.
          if ((events[static_cast<std::size_t>(i)].events & (EPOLLHUP | EPOLLERR)) != 0)
            close(*connection);
          else
            drive(*connection);
        }
      }
      if (const double now = now_seconds(); now >= next_tick) {
        tick(now);
        next_tick = now + kTickMs / 1000.0;
      }
    }
  }

  /// How many there are; 0: none for the time of a tick.
  int wait(std::span<epoll_event> events, bool is_busy) const {
    const auto poll = [&](int timeout_ms) {
      return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    };
    if (is_busy && has_cores_) {
      const double end = now_seconds() + kBusyPollS;
      do {
        if (const int count = poll(0); count != 0) return count;
      } while (now_seconds() < end);
    }
    return poll(kTickMs);
  }

  void run_jobs() {
    wake_.clear();
    std::vector<std::function<void()>> jobs;
    {
      const std::lock_guard lock(mutex_);
      jobs.swap(jobs_);
    }
    for (const auto& job : jobs) job();
  }

  /// As far as it goes without waiting.
  void drive(CacheConnection& connection) {
    CacheClient& client = *connection.client;
    TlsSession* const tls = connection.tls.get();
    bool progress = false;
    // The socket does not signal data that TLS has already read.
    for (int turn = 0; tls != nullptr || turn < kMaxReadsInARow; ++turn) {
      if (client.ends()) return close(connection);
      if (tls != nullptr && tls->must_write() && !tls->write({})) return close(connection);
      const LmSession::Output output = client.output();
      if (!output.empty()) {
        const auto count = connection.write(output);
        if (!count) return close(connection);
        if (*count == 0) break;
        client.sent(*count);
        progress = true;
        if (client.ends()) return close(connection);
        if (tls == nullptr && client.output().empty()) break;
        continue;
      }
      const std::span<char> input = client.input();
      if (input.empty()) break;
      const auto count = connection.read(input);
      if (!count) return close(connection);
      if (*count == 0) break;
      client.received(*count);
      progress = true;
    }
    if (client.ends()) return close(connection);
    const bool waits = client.is_waiting();
    if (!waits)
      connection.waits_since = 0;
    else if (progress || connection.waits_since == 0)
      connection.waits_since = now_seconds();
    const bool writes = !client.output().empty() || (tls != nullptr && tls->must_write());
    const std::uint32_t events =
        (writes ? EPOLLOUT : 0u) | (!client.input().empty() ? EPOLLIN : 0u);
    if (events == connection.events) return;
    connection.events = events;
    watch(connection.socket.get(), events, EPOLL_CTL_MOD);
  }

  void close(CacheConnection& connection) {
    shared_.num_connections.add(-1);
    connections_.erase(connection.socket.get());  // which the socket leaves epoll with
  }

  void tick(double now) {
    std::vector<std::shared_ptr<CacheConnection>> late;
    for (const auto& [number, connection] : connections_) {
      if (connection->tls != nullptr && !connection->tls->established() &&
          connection->waits_since == 0)
        connection->waits_since = now;
      if (connection->waits_since > 0 && now - connection->waits_since > shared_.config.timeout_s)
        late.push_back(connection);
    }
    for (const auto& connection : late) close(*connection);
  }

  Shared& shared_;
  const bool has_cores_ = std::thread::hardware_concurrency() > 1;  // one to poll on
  const FileDescriptor epoll_;
  const EventFd wake_;
  std::unordered_map<int, std::function<void()>> listeners_;
  std::unordered_map<int, std::shared_ptr<CacheConnection>> connections_;
  std::mutex mutex_;  // guards the jobs
  std::vector<std::function<void()>> jobs_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

class CacheServer::Impl {
 public:
  explicit Impl(CacheServerConfig config) : shared_(std::move(config)) {}
  ~Impl() {
    for (const auto& thread : threads_) thread->stop();
    shared_.store.reset();  // its threads may still post
  }

  Result<void> start() {
    CacheServerConfig& config = shared_.config;
    ASSIGN_OR_RETURN(lm_listener_, listen_on(config.host, config.port));
    if (config.http_port >= 0) {
      ASSIGN_OR_RETURN(http_listener_,
                       listen_on(config.http_host, static_cast<std::uint16_t>(config.http_port)));
    }
    std::unique_ptr<CacheFolder> folder;
    if (!config.directory.empty()) {
      ASSIGN_OR_RETURN(folder, CacheFolder::open(config.directory));
    }
    config.store.tenants.merge(config.tokens.quotas());
    shared_.store = std::make_unique<CacheStore>(config.store, std::move(folder), shared_.registry);
    for (std::int32_t i = 0; i < config.num_threads; ++i)
      threads_.push_back(std::make_unique<CacheThread>(shared_));
    threads_[0]->listen(lm_listener_.get(), [this] { accept(lm_listener_, false); });
    if (http_listener_.valid())
      threads_[0]->listen(http_listener_.get(), [this] { accept(http_listener_, true); });
    for (const auto& thread : threads_) thread->start();
    return {};
  }

  [[nodiscard]] std::uint16_t port() const { return port_of(lm_listener_); }
  [[nodiscard]] std::uint16_t http_port() const {
    return http_listener_.valid() ? port_of(http_listener_) : 0;
  }
  [[nodiscard]] CacheStore& store() { return *shared_.store; }

 private:
  /// On the first thread; connections go to all in turn.
  void accept(const FileDescriptor& listener, bool http) {
    while (true) {
      FileDescriptor socket(
          ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid() && (errno == EMFILE || errno == ENFILE) && spare_.valid()) {
        // Or it would wait for good, and wake this thread up all the time.
        spare_ = FileDescriptor();
        FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        spare_ = open_spare();
        log_warning("no file descriptor is left for a connection");
        continue;
      }
      if (!socket.valid()) return;
      if (shared_.num_connections.value() >= shared_.config.max_connections) {
        log_warning("too many connections", kv("limit", shared_.config.max_connections));
        continue;
      }
      shared_.num_connections.add(1);
      CacheThread& thread = *threads_[next_thread_++ % threads_.size()];
      thread.post([&thread, http, moved = std::make_shared<FileDescriptor>(std::move(socket))] {
        thread.add(std::move(*moved), http);
      });
    }
  }

  static FileDescriptor open_spare() {
    return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

  Shared shared_;
  FileDescriptor spare_ = open_spare();
  FileDescriptor lm_listener_;
  FileDescriptor http_listener_;
  std::vector<std::unique_ptr<CacheThread>> threads_;
  std::size_t next_thread_ = 0;
};

Result<std::unique_ptr<CacheServer>> CacheServer::start(CacheServerConfig config) {
  auto impl = std::make_unique<Impl>(std::move(config));
  RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<CacheServer>(new CacheServer(std::move(impl)));
}

CacheServer::CacheServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheServer::~CacheServer() = default;
std::uint16_t CacheServer::port() const noexcept { return impl_->port(); }
std::uint16_t CacheServer::http_port() const noexcept { return impl_->http_port(); }
CacheStore& CacheServer::store() noexcept { return impl_->store(); }

}  // namespace troupe
