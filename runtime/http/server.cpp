#include "runtime/http/server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <thread>
#include <unordered_set>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/session.hpp"
#include "runtime/http/work_threads.hpp"
#include "runtime/transport/listener_handover.hpp"

namespace troupe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// How long a client may take to read the last response before its connection is closed.
constexpr double kLingerSeconds = 2;
/// After a pause this long no further request is on its way; clients open another connection.
constexpr double kRetiredIdleSeconds = 2;
/// Connections over the limit that get a 503; further ones are closed at once.
constexpr std::int64_t kMaxRefusedConnections = 128;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::size_t kReadBytes = 64 << 10;
/// Threads that parse long bodies; several, so that one body cannot block all others.
constexpr int kNumReaders = 2;

struct Timeouts {
  double idle_s;
  double write_s;
  double silence_s;  ///< 0: no keep-alive comments
  double body_s;
  /// Interval of timeout checks: a timeout may fire late by this much.
  [[nodiscard]] double tick_s() const {
    const double shortest = std::min({idle_s, write_s, body_s, silence_s > 0 ? silence_s : idle_s});
    return std::clamp(shortest / 4, 0.01, 1.0);
  }
};

std::string peer_of(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return {};
  const std::string address = peer.address().to_string();
  return (peer.address().is_v6() ? "[" + address + "]" : address) + ":" +
         std::to_string(peer.port());
}

/// Owns a socket and its session. A read is always pending (unless enough is buffered), so that a
/// disconnect is noticed while a request runs.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Service& service, const HttpLimits& limits,
             const Timeouts& timeouts, bool refuse, std::function<void(Connection&)> closed)
      : socket_(std::move(socket)),
        timeouts_(timeouts),
        closed_(std::move(closed)),
        session_(std::make_unique<HttpSession>(
            service, limits, wall_seconds, [this] { start_write(); }, refuse, peer_of(socket_))),
        waiting_since_(now_seconds()),
        last_write_(waiting_since_) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void start() {
    guard([&] { start_read(); });
  }

  /// Closes at once; running requests are aborted.
  void close() {
    if (!session_) return;
    session_.reset();
    error_code ignored;
    socket_.close(ignored);
    const auto self = shared_from_this();
    closed_(*this);
  }

  void tick(double now) {
    guard([&] { look_at_clock(now); });
  }

 private:
  /// The session handles exceptions of its own; a socket's exception ends this connection.
  template <class Function>
  void guard(Function&& function) {
    const auto self = shared_from_this();
    try {
      function();
    } catch (const std::exception& failure) {
      log_error("connection failed", kv("what", std::string(failure.what())));
      close();
    }
  }

  void look_at_clock(double now) {
    if (!session_) return;
    if (session_->broken()) return close();
    session_->check_time(now);
    if (lingering_ ? now - last_write_ > kLingerSeconds
        : writing_
            ? now - last_write_ > timeouts_.write_s
            : !session_->answering() && now - waiting_since_ > idle_s() && !session_->on_idle()) {
      return close();
    }
    if (timeouts_.silence_s > 0 && !writing_ && now - last_write_ > timeouts_.silence_s) {
      session_->on_silence();
    }
  }

  [[nodiscard]] double idle_s() const {
    return session_->can_retire() ? std::min(timeouts_.idle_s, kRetiredIdleSeconds)
                                  : timeouts_.idle_s;
  }

  void start_read() {
    if (reading_ || !session_ || !(lingering_ || session_->wants_input())) return;
    reading_ = true;
    socket_.async_read_some(
        asio::buffer(received_),
        [self = shared_from_this()](const error_code& error, std::size_t num_bytes) {
          self->reading_ = false;
          self->guard([&] { self->on_read(error, num_bytes); });
        });
  }

  void on_read(const error_code& error, std::size_t num_bytes) {
    if (!session_) return;
    if (error) return close();
    if (!lingering_) {
      session_->receive({received_.data(), num_bytes});
      // A head must arrive within the idle timeout, however slowly its bytes trickle in.
      if (session_->answering() || session_->reading_body()) waiting_since_ = now_seconds();
    }
    start_read();
  }

  void start_write() {
    if (session_->broken()) {  // on_output: destroy it after it returns
      return asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
    }
    if (writing_ || !session_->take_output(sending_)) return;
    writing_ = true;
    last_write_ = now_seconds();
    num_written_ = 0;
    continue_write();
  }

  void continue_write() {
    socket_.async_write_some(
        asio::buffer(sending_.data() + num_written_, sending_.size() - num_written_),
        [self = shared_from_this()](const error_code& error, std::size_t num_bytes) {
          self->guard([&] { self->on_written(error, num_bytes); });
        });
  }

  void on_written(const error_code& error, std::size_t num_bytes) {
    if (!session_) return;
    if (error) return close();
    last_write_ = now_seconds();
    num_written_ += num_bytes;
    if (num_written_ < sending_.size()) return continue_write();
    writing_ = false;
    waiting_since_ = last_write_;
    session_->sent();
    if (session_->finished()) linger();
    start_read();
  }

  /// Closing at once would discard a response that the client has not read while it still sends.
  void linger() {
    if (lingering_) return;
    lingering_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  tcp::socket socket_;
  const Timeouts timeouts_;
  const std::function<void(Connection&)> closed_;
  std::unique_ptr<HttpSession> session_;  ///< null: closed
  std::array<char, kReadBytes> received_;
  std::string sending_;
  std::size_t num_written_ = 0;
  bool reading_ = false;
  bool writing_ = false;
  bool lingering_ = false;
  double waiting_since_;  ///< since when the client has to act
  double last_write_;
};

/// One I/O thread with its connections and requests.
struct Lane {
  Lane(const ServerConfig& config, ServiceEnvironment environment, ServiceCounters& counters,
       EnginePort& port, EngineMetrics& metrics, const Timeouts& timeouts)
      : work(asio::make_work_guard(io)),
        ticker(io),
        tick(from_seconds(timeouts.tick_s())),
        counters(counters),
        service(config.service, std::move(environment), counters, port, metrics) {}

  void start_ticking() {
    ticking = true;
    ticker.expires_after(tick);
    ticker.async_wait([this](const error_code& error) {
      ticking = false;
      if (error) return;
      const double now = now_seconds();
      // A copy: a connection that closes removes itself from the set.
      const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
      for (const auto& connection : all) connection->tick(now);
      if (counters.kept_streams != nullptr) counters.kept_streams->expire(wall_seconds());
      start_ticking();
    });
  }

  void run() {
    for (;;) {
      try {
        if (!ticking) start_ticking();
        keep_accepting();
        io.run();
        return;
      } catch (const std::exception& failure) {
        log_error("http handler failed", kv("what", std::string(failure.what())));
      } catch (...) {
        log_error("http handler failed", kv("what", std::string("unknown exception")));
      }
      // Exceptions of one request are caught there. Other requests and the loop continue.
    }
  }

  void close_all() {
    ticker.cancel();
    const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->close();
  }

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer ticker;
  const std::chrono::nanoseconds tick;
  ServiceCounters& counters;
  Service service;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::function<void()> keep_accepting = [] {};  ///< set on the lane that accepts
  bool ticking = false;
  std::thread thread;
};

/// Binds the acceptor, optionally listens; returns the port.
Result<std::uint16_t> open_port(tcp::acceptor& acceptor, const std::string& host,
                                std::int64_t number, bool listen) {
  const std::string port = std::to_string(number);
  error_code error;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(host, port, tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return invalid_argument("cannot resolve host " + host + ": " + error.message(), "host");
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  std::uint16_t opened = 0;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error && listen) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) opened = acceptor.local_endpoint(error).port();
  if (!error) return opened;
  std::string text = "cannot listen on " + host + ":" + port + ": " + error.message();
  if (error == asio::error::address_in_use)
    text += "; the port is in use, choose another one with --port (0: any free port)";
  return Error{ErrorCode::kIo, text, "port"};
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerConfig config, EnginePort& port, EngineMetrics& metrics)
      : config_(std::move(config)),
        metrics_(metrics),
        limits_{static_cast<std::uint64_t>(config_.options.max_body_bytes),
                static_cast<std::uint32_t>(config_.options.max_header_bytes),
                config_.options.body_timeout_s},
        timeouts_{config_.options.idle_timeout_s, config_.options.write_timeout_s,
                  config_.options.sse_keep_alive_interval, config_.options.body_timeout_s} {
    CHECK(config_.num_io_threads >= 1, config_.num_io_threads);
    for (int i = 0; i < config_.num_io_threads; ++i) add_lane(port);
    acceptor_ = std::make_unique<tcp::acceptor>(lanes_.front()->io);
    accept_pause_ = std::make_unique<asio::steady_timer>(lanes_.front()->io);
    lanes_.front()->keep_accepting = [this] {
      if (!accepting_) accept();
    };
  }

  /// Pre: the port is known, and no thread runs.
  Result<void> open_streams() {
    const ServerOptions& options = config_.options;
    if (!options.resume) return {};
    const std::string directory = options.resume_directory.empty()
                                      ? "/dev/shm/troupe-streams-" + std::to_string(port_)
                                      : options.resume_directory;
    ASSIGN_OR_RETURN(
        kept_streams_,
        KeptStreams::open(directory,
                          {.max_streams = static_cast<std::size_t>(options.resume_max_streams),
                           .max_bytes = static_cast<std::size_t>(options.resume_max_bytes),
                           .ttl_s = options.resume_ttl_s},
                          wall_seconds()));
    counters_.kept_streams = kept_streams_.get();
    return {};
  }

  Result<void> listen() {
    const ServerOptions& options = config_.options;
    if (config_.takes_over && take_listener()) return {};
    ASSIGN_OR_RETURN(port_, open_port(*acceptor_, options.host, options.port, true));
    return {};
  }

  /// For the server that replaces this one. Pre: the port is known, and no thread runs.
  void offer_listener() {
    auto offered =
        ListenerHandover::offer(config_.options.host, port_, acceptor_->native_handle(), [this] {
          log_info("another server accepts connections too", kv("port", port_));
          if (kept_streams_) kept_streams_->hand_over();
        });
    if (offered.ok()) {
      handover_ = std::move(offered).value();
    } else {
      log_warning("the listening socket cannot be taken over",
                  kv("reason", offered.error().message));
    }
  }

  void run() {
    for (const auto& lane : lanes_) {
      lane->thread = std::thread([&lane = *lane] { lane.run(); });
    }
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

  void deliver(RequestOutputs outputs) {
    metrics_.observe_step(outputs.stats);
    if (outputs.outputs.empty()) return;
    // Each lane takes the outputs of its own requests from the shared object.
    const auto shared = std::make_shared<RequestOutputs>(std::move(outputs));
    for (const auto& lane : lanes_) {
      asio::post(lane->io, [&lane = *lane, shared] { lane.service.deliver(*shared); });
    }
  }

  void drain(std::function<void()> done) {
    drained_ = std::move(done);
    counters_.draining = true;
    // A lane that has seen the flag starts nothing new: when all have, the count can only decrease.
    const auto num_unaware = std::make_shared<std::atomic<std::size_t>>(lanes_.size());
    for (const auto& lane : lanes_) {
      asio::post(lane->io, [this, num_unaware] {
        if (--*num_unaware > 0) return;
        all_lanes_drain_ = true;
        check_drained();
      });
    }
  }

  void retire(std::function<void()> done) {
    handover_.reset();
    asio::post(lanes_.front()->io, [this, done = std::move(done)]() mutable {
      if (drained_called_) return done();
      drained_ = std::move(done);
      counters_.retiring = true;
      close_acceptor();
      check_retired();
    });
  }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    handover_.reset();
    for (const auto& lane : lanes_) {
      asio::post(lane->io, [this, &lane = *lane] {
        if (&lane == lanes_.front().get()) close_acceptor();
        lane.close_all();
        lane.io.stop();
      });
    }
    for (const auto& lane : lanes_) {
      if (lane->thread.joinable()) lane->thread.join();
    }
    // A socket may have been on its way to a lane that was already stopped.
    for (const auto& lane : lanes_) lane->close_all();
    // A drained server does not come back.
    if (kept_streams_ && counters_.draining) kept_streams_->remove_all();
    call_drained();
  }

 private:
  void add_lane(EnginePort& port) {
    // The engine may reply after the lane is gone.
    const auto self = std::make_shared<std::weak_ptr<Lane>>();
    ServiceEnvironment environment{.wall_clock = wall_seconds,
                                   .steady_clock = now_seconds,
                                   .random = random_bits,
                                   .post =
                                       [self](std::function<void()> function) {
                                         if (const auto lane = self->lock())
                                           asio::post(lane->io, std::move(function));
                                       },
                                   .exchange_ended = [this] { check_drained(); },
                                   .work = [this](Work work) { readers_.run(std::move(work)); }};
    const auto lane = std::make_shared<Lane>(config_, std::move(environment), counters_, port,
                                             metrics_, timeouts_);
    *self = lane;
    lanes_.push_back(lane);
  }

  bool take_listener() {
    auto listener = ListenerHandover::take(config_.options.host,
                                           static_cast<std::uint16_t>(config_.options.port));
    if (!listener) return false;
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    error_code error;
    if (getsockname(listener->get(), reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
    acceptor_->assign(name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), listener->get(), error);
    if (error) return false;
    static_cast<void>(listener->release());
    port_ = acceptor_->local_endpoint(error).port();
    log_info("took over the listening socket", kv("port", port_));
    return !error;
  }

  /// On the first lane's thread. Released first: the reactor would go on watching a closed socket
  /// that another process has as well.
  void close_acceptor() {
    accept_pause_->cancel();
    error_code ignored;
    if (acceptor_->is_open()) ::close(acceptor_->release(ignored));
  }

  void accept() {
    Lane& lane = *lanes_[next_lane_];
    next_lane_ = (next_lane_ + 1) % lanes_.size();
    accepting_ = true;
    acceptor_->async_accept(lane.io, [this, &lane](const error_code& error, tcp::socket socket) {
      accepting_ = false;
      if (error && !acceptor_->is_open()) return check_retired();
      if (error) {
        log_warning("cannot accept a connection", kv("error", error.message()));
        accept_pause_->expires_after(kAcceptPause);
        accept_pause_->async_wait([this](const error_code& stopped) {
          accepting_ = false;
          stopped ? check_retired() : accept();
        });
        accepting_ = true;
        return;
      }
      const std::int64_t count = num_connections_++;
      asio::post(lane.io, [this, &lane, count, socket = std::move(socket)]() mutable {
        open(lane, count, std::move(socket));
      });
      if (acceptor_->is_open()) accept();
    });
  }

  void open(Lane& lane, std::int64_t count, tcp::socket socket) {
    const std::int64_t limit = config_.options.max_connections;
    if (count >= limit + kMaxRefusedConnections) return end_connection();
    const auto connection =
        std::make_shared<Connection>(std::move(socket), lane.service, limits_, timeouts_,
                                     count >= limit, [this, &lane](Connection& closed) {
                                       lane.connections.erase(closed.shared_from_this());
                                       end_connection();
                                     });
    lane.connections.insert(connection);
    connection->start();
  }

  void end_connection() {
    --num_connections_;
    if (counters_.retiring) asio::post(lanes_.front()->io, [this] { check_retired(); });
  }

  /// On the first lane's thread: is nothing left of a server that retires?
  void check_retired() {
    if (!counters_.retiring || accepting_ || num_connections_ > 0) return;
    counters_.draining = true;
    call_drained();
  }
  void check_drained() {
    if (all_lanes_drain_ && counters_.num_exchanges == 0) call_drained();
  }
  void call_drained() {
    if (!counters_.draining || drained_called_.exchange(true)) return;
    if (drained_) drained_();
  }

  const ServerConfig config_;
  EngineMetrics& metrics_;
  const HttpLimits limits_;
  const Timeouts timeouts_;
  ServiceCounters counters_;
  std::function<void()> drained_;  ///< set before counters_.draining or counters_.retiring
  std::atomic<bool> all_lanes_drain_{false};
  std::atomic<bool> drained_called_{false};
  std::atomic<std::int64_t> num_connections_{0};
  std::unique_ptr<KeptStreams> kept_streams_;  ///< null: resume is off
  std::unique_ptr<ListenerHandover> handover_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::unique_ptr<tcp::acceptor> acceptor_;  ///< on the first lane
  std::unique_ptr<asio::steady_timer> accept_pause_;
  WorkThreads readers_{kNumReaders};  ///< parse bodies; destroyed before the lanes
  std::size_t next_lane_ = 0;
  bool accepting_ = false;  ///< or waiting to resume; on the first lane's thread
  std::uint16_t port_ = 0;
  bool stopped_ = false;
};

Result<void> check_address(const std::string& host, std::int64_t port) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  RETURN_IF_ERROR(open_port(acceptor, host, port, false));
  return {};
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, EnginePort& port,
                                              EngineMetrics& metrics) {
  auto impl = std::make_unique<Impl>(std::move(config), port, metrics);
  RETURN_IF_ERROR(impl->listen());
  RETURN_IF_ERROR(impl->open_streams());
  impl->offer_listener();
  impl->run();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { stop(); }

std::uint16_t Server::port() const noexcept { return impl_->port(); }
void Server::deliver(RequestOutputs outputs) { impl_->deliver(std::move(outputs)); }
void Server::drain(std::function<void()> done) { impl_->drain(std::move(done)); }
void Server::retire(std::function<void()> done) { impl_->retire(std::move(done)); }
void Server::stop() { impl_->stop(); }

}  // namespace troupe
