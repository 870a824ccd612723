#include "runtime/http/server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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
#include "runtime/http/batch_runner.hpp"
#include "runtime/http/connection.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/local_calls.hpp"
#include "runtime/http/response_store.hpp"
#include "runtime/http/work_threads.hpp"
#include "runtime/tracing/span_exporter.hpp"
#include "runtime/transport/listener_handover.hpp"
#include "runtime/transport/tls.hpp"

namespace troupe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// Connections over the limit that get a 503; further ones are closed at once.
constexpr std::int64_t kMaxRefusedConnections = 128;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
/// Threads that parse long bodies; several, so that one body cannot block all others.
constexpr int kNumReaders = 2;

/// One I/O thread with its connections and requests.
struct Lane {
  Lane(const ServerConfig& config, ServiceEnvironment environment, ServiceCounters& counters,
       EnginePort& port, EngineMetrics& metrics, const ConnectionTimeouts& timeouts)
      : work(asio::make_work_guard(io)),
        post(environment.post),
        ticker(io),
        tick(from_seconds(timeouts.tick_s())),
        counters(counters),
        service(config.service, std::move(environment), counters, port, metrics),
        local_calls(service, post) {}

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
    local_calls.abort_all();
    service.leave_responses();
  }

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  const std::function<void(std::function<void()>)> post;
  asio::steady_timer ticker;
  const std::chrono::nanoseconds tick;
  ServiceCounters& counters;
  Service service;
  LocalCalls local_calls;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::function<void()> keep_accepting = [] {};  ///< set on the lane that accepts
  bool ticking = false;
  std::thread thread;
};

/// Null: plain HTTP.
Result<std::shared_ptr<TlsSource>> open_https(const ServerOptions& options) {
  if (options.ssl_certfile.empty()) return std::shared_ptr<TlsSource>();
  const TlsServerPolicy policy{
      .client_certificate = static_cast<TlsServerPolicy::ClientCertificate>(options.ssl_cert_reqs),
      .ciphers = options.ssl_ciphers};
  return TlsSource::open(
      {.certificate = options.ssl_certfile,
       .key = options.ssl_keyfile.empty() ? options.ssl_certfile : options.ssl_keyfile,
       .ca = options.ssl_ca_certs},
      [policy](const TlsFiles& files) { return TlsContext::load_for_http(files, policy); });
}

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
        limits_{
            .max_body_bytes = static_cast<std::uint64_t>(config_.options.max_body_bytes),
            .max_upload_bytes = static_cast<std::uint64_t>(config_.options.max_batch_file_bytes),
            .max_header_bytes = static_cast<std::uint32_t>(config_.options.max_header_bytes),
            .body_timeout_s = config_.options.body_timeout_s},
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

  /// Pre: no thread runs.
  void start_tracing() {
    const ServerOptions& options = config_.options;
    if (options.otlp_traces_endpoint.empty()) return;
    spans_ = std::make_unique<SpanExporter>(
        SpanExporter::Options{.endpoint = options.otlp_traces_endpoint,
                              .service_name = options.otel_service_name,
                              .version = config_.service.version});
    counters_.spans = spans_.get();
  }

  /// Pre: no thread runs.
  Result<void> open_responses() {
    const ServerOptions& options = config_.options;
    if (options.max_stored_responses == 0) return {};
    ASSIGN_OR_RETURN(responses_,
                     ResponseStore::open(options.responses_db,
                                         {.max_responses = options.max_stored_responses,
                                          .max_bytes = options.max_stored_response_bytes}));
    counters_.responses = responses_.get();
    return {};
  }

  /// Pre: no thread runs.
  Result<void> open_batches() {
    const ServerOptions& options = config_.options;
    if (options.batch_directory.empty()) return {};
    ASSIGN_OR_RETURN(batches_, BatchStore::open(options.batch_directory,
                                                {.max_file_bytes = options.max_batch_file_bytes,
                                                 .max_bytes = options.max_batch_directory_bytes,
                                                 .max_requests = options.max_batch_requests,
                                                 .max_line_bytes = options.max_body_bytes}));
    counters_.batches = batches_.get();
    counters_.batches_changed = [this] {
      if (runner_started_) runner_->changed();
    };
    return {};
  }

  /// Pre: the lanes' threads run, and nothing has been accepted that needs counters_ in another
  /// state.
  void run_batches() {
    if (!batches_) return;
    const auto lane_of = [this](std::uint64_t id) -> Lane& { return *lanes_[id % lanes_.size()]; };
    BatchPort port{.start =
                       [lane_of](std::uint64_t id, HttpRequest request,
                                 std::function<void(HttpResponse)> done) {
                         Lane& lane = lane_of(id);
                         asio::post(lane.io, [&lane, id, request = std::move(request),
                                              done = std::move(done)]() mutable {
                           lane.local_calls.start(id, std::move(request), std::move(done));
                         });
                       },
                   .abort =
                       [lane_of](std::uint64_t id) {
                         Lane& lane = lane_of(id);
                         asio::post(lane.io, [&lane, id] { lane.local_calls.abort(id); });
                       },
                   .draining = [this] { return counters_.draining.load(); }};
    runner_ = std::make_unique<BatchRunner>(*batches_, std::move(port), wall_seconds,
                                            config_.options.max_batch_in_flight);
    runner_started_ = true;
  }

  /// Pre: as run_batches.
  void adopt_responses() {
    if (!responses_) return;
    Lane& lane = *lanes_.front();
    asio::post(lane.io, [&lane] { lane.service.adopt_responses(); });
  }

  Result<void> listen() {
    const ServerOptions& options = config_.options;
    ASSIGN_OR_RETURN(tls_, open_https(options));
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
    if (runner_) runner_->stop();  // the other server continues the batches
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
    if (runner_) runner_->stop();
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
    // The engine may reply after the end of the lane.
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

  /// On the first lane's thread. Released first: the reactor would keep watching a closed socket
  /// that another process shares.
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
    const auto connection = std::make_shared<Connection>(
        ClientStream(std::move(socket), tls_ ? tls_->context() : nullptr), lane.service, limits_,
        timeouts_, count >= limit, [this, &lane](Connection& closed) {
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
  const ConnectionTimeouts timeouts_;
  ServiceCounters counters_;
  std::function<void()> drained_;  ///< set before counters_.draining or counters_.retiring
  std::atomic<bool> all_lanes_drain_{false};
  std::atomic<bool> drained_called_{false};
  std::atomic<std::int64_t> num_connections_{0};
  std::unique_ptr<SpanExporter> spans_;        ///< null: requests are not traced
  std::unique_ptr<ResponseStore> responses_;   ///< null: none is stored
  std::unique_ptr<KeptStreams> kept_streams_;  ///< null: resume is off
  std::unique_ptr<BatchStore> batches_;        ///< null: no files and batches
  std::unique_ptr<BatchRunner> runner_;        ///< the same
  std::atomic<bool> runner_started_{false};
  std::shared_ptr<TlsSource> tls_;  ///< null: plain HTTP
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

Result<void> check_address(const ServerOptions& options) {
  ASSIGN_OR_RETURN(const auto https, open_https(options));
  asio::io_context io;
  tcp::acceptor acceptor(io);
  RETURN_IF_ERROR(open_port(acceptor, options.host, options.port, false));
  return {};
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, EnginePort& port,
                                              EngineMetrics& metrics) {
  auto impl = std::make_unique<Impl>(std::move(config), port, metrics);
  RETURN_IF_ERROR(impl->listen());
  RETURN_IF_ERROR(impl->open_streams());
  RETURN_IF_ERROR(impl->open_responses());
  RETURN_IF_ERROR(impl->open_batches());
  impl->start_tracing();
  impl->offer_listener();
  impl->run();
  impl->run_batches();
  impl->adopt_responses();
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
