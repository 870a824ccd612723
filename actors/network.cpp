#include "actors/network.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <caf/io/middleman_actor_impl.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/network/doorman_impl.hpp>
#include <caf/io/network/stream_impl.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <set>

#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/tcp_probe.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
namespace net = caf::io::network;

/// What CAF says of one end of a connection; empty if that is gone.
template <class T>
T value_or_empty(const caf::expected<T>& value) {
  return value ? *value : T{};
}

constexpr auto kProbeTimeout = 2000ms;
constexpr auto kConnectTimeout = 5s;
constexpr double kHandshakeTimeout_s = 5;
constexpr std::size_t kMaxHandshakes = 256;
/// The same refusal again is logged after so long.
constexpr double kRefusalInterval_s = 60;

/// The encrypted side of a connection: what CAF's stream reads from and writes to. All of these run
/// in CAF's one network thread.
class TlsPolicy {
 public:
  explicit TlsPolicy(std::shared_ptr<TlsSession> session) : session_(std::move(session)) {}

  net::rw_state read_some(std::size_t& count, int, void* data, std::size_t size) {
    return result(count, session_->read({static_cast<char*>(data), size}));
  }
  net::rw_state write_some(std::size_t& count, int, const void* data, std::size_t size) {
    return result(count, session_->write({static_cast<const char*>(data), size}));
  }
  bool must_read_more(int, std::size_t threshold) const { return session_->pending() >= threshold; }

 private:
  static net::rw_state result(std::size_t& count, std::optional<std::size_t> done) {
    count = done.value_or(0);
    return done ? net::rw_state::success : net::rw_state::failure;
  }

  std::shared_ptr<TlsSession> session_;
};

/// Tells of whom was refused and why, once; a stranger does not fill the log.
class RefusalLog {
 public:
  void add(const std::string& address, const std::string& reason) {
    const double now = now_seconds();
    if (logged_at_.size() >= kMaxRefusals) logged_at_.clear();
    const auto [entry, is_new] = logged_at_.try_emplace(address + " " + reason, now);
    if (!is_new && now - entry->second < kRefusalInterval_s) return;
    entry->second = now;
    log_warning("connection refused", kv("peer", address), kv("reason", reason));
  }

 private:
  static constexpr std::size_t kMaxRefusals = 256;
  std::map<std::string, double> logged_at_;
};

class TlsStream : public net::stream {
 public:
  TlsStream(net::default_multiplexer& multiplexer, int socket, std::shared_ptr<TlsSession> session,
            std::shared_ptr<RefusalLog> refusals)
      : stream(multiplexer, socket),
        session_(std::move(session)),
        policy_(session_),
        refusals_(std::move(refusals)),
        address_(value_or_empty(net::remote_addr_of_fd(socket))) {}

  void handle_event(net::operation operation) override {
    handle_event_impl(operation, policy_);
    if (told_ || session_->error().empty()) return;
    told_ = true;
    if (session_->established()) {
      log_warning("connection failed", kv("peer", address_), kv("reason", session_->error()));
    } else {
      refusals_->add(address_, session_->error());
    }
  }
  [[nodiscard]] const TlsSession& session() const { return *session_; }

 private:
  std::shared_ptr<TlsSession> session_;
  TlsPolicy policy_;
  std::shared_ptr<RefusalLog> refusals_;
  std::string address_;  ///< asked now, as nobody is there any more when it is needed
  bool told_ = false;
};

/// A connection as the broker sees it.
class TlsScribe : public caf::io::scribe {
 public:
  TlsScribe(net::default_multiplexer& multiplexer, int socket, std::shared_ptr<TlsSession> session,
            std::shared_ptr<RefusalLog> refusals)
      : scribe(net::conn_hdl_from_socket(socket)),
        stream_(multiplexer, socket, std::move(session), std::move(refusals)) {}

  void configure_read(caf::io::receive_policy::config config) override {
    stream_.configure_read(config);
    if (std::exchange(launched_, true)) return;
    stream_.start(this);
    // Also who has nothing to say yet begins the handshake.
    stream_.force_empty_write(this);
  }
  void ack_writes(bool enable) override { stream_.ack_writes(enable); }
  std::vector<char>& wr_buf() override { return stream_.wr_buf(); }
  std::vector<char>& rd_buf() override { return stream_.rd_buf(); }
  void flush() override { stream_.flush(this); }
  void graceful_shutdown() override {
    stream_.graceful_shutdown();
    detach(&stream_.backend(), false);
  }
  std::string addr() const override { return value_or_empty(net::remote_addr_of_fd(stream_.fd())); }
  std::uint16_t port() const override {
    return value_or_empty(net::remote_port_of_fd(stream_.fd()));
  }
  void add_to_loop() override { stream_.activate(this); }
  void remove_from_loop() override { stream_.passivate(); }

 private:
  TlsStream stream_;
  bool launched_ = false;
};

class TlsDoorman : public net::doorman_impl {
 public:
  TlsDoorman(net::default_multiplexer& multiplexer, int socket, std::shared_ptr<TlsSource> tls)
      : doorman_impl(multiplexer, socket), tls_(std::move(tls)) {}

  bool new_connection() override {
    const int socket = acceptor_.accepted_socket();
    if (detached() || !make_room()) {
      close(socket);
      return !detached();
    }
    net::nonblocking(socket, true);
    net::tcp_nodelay(socket, true);
    auto session =
        std::make_shared<TlsSession>(tls_->context(), socket, TlsSession::Side::kAccepts);
    handshakes_.push_back({session, socket, now_seconds()});
    auto scribe =
        caf::make_counted<TlsScribe>(acceptor_.backend(), socket, std::move(session), refusals_);
    const auto handle = scribe->hdl();
    parent()->add_scribe(std::move(scribe));
    return doorman::new_connection(&acceptor_.backend(), handle);
  }

 private:
  /// A connection whose other side has yet to show its certificate.
  struct Handshake {
    std::weak_ptr<TlsSession> session;
    int socket = -1;
    double since = 0;
  };

  /// Who does not come to the point within a few seconds makes room for the next.
  bool make_room() {
    const double now = now_seconds();
    std::erase_if(handshakes_, [&](const Handshake& handshake) {
      const auto session = handshake.session.lock();
      if (!session || session->established()) return true;
      if (now - handshake.since < kHandshakeTimeout_s) return false;
      shutdown(handshake.socket, SHUT_RDWR);  // the stream sees it, and ends
      return true;
    });
    if (handshakes_.size() < kMaxHandshakes) return true;
    refusals_->add("anybody", std::to_string(kMaxHandshakes) + " others are in their handshake");
    return false;
  }

  std::shared_ptr<TlsSource> tls_;
  std::shared_ptr<RefusalLog> refusals_ = std::make_shared<RefusalLog>();
  std::deque<Handshake> handshakes_;
};

class TlsMiddleman : public caf::io::middleman_actor_impl {
 public:
  TlsMiddleman(caf::actor_config& config, caf::actor broker, std::shared_ptr<TlsSource> tls)
      : middleman_actor_impl(config, std::move(broker)), tls_(std::move(tls)) {}
  const char* name() const override { return "tls_middleman"; }

 protected:
  caf::expected<caf::io::scribe_ptr> connect(const std::string& host, std::uint16_t port) override {
    auto connection = connect_tcp(host, port, kProbeTimeout);
    if (!connection.ok()) return caf::make_error(caf::sec::cannot_connect_to_node);
    const int socket = connection->release();
    net::tcp_nodelay(socket, true);
    return caf::io::scribe_ptr(caf::make_counted<TlsScribe>(
        multiplexer(), socket,
        std::make_shared<TlsSession>(tls_->context(), socket, TlsSession::Side::kConnects),
        std::make_shared<RefusalLog>()));
  }
  caf::expected<caf::io::doorman_ptr> open(std::uint16_t port, const char* host,
                                           bool reuse) override {
    auto socket = net::new_tcp_acceptor_impl(port, host, reuse);
    if (!socket) return std::move(socket.error());
    return caf::io::doorman_ptr(caf::make_counted<TlsDoorman>(multiplexer(), *socket, tls_));
  }

 private:
  net::default_multiplexer& multiplexer() {
    return dynamic_cast<net::default_multiplexer&>(system().middleman().backend());
  }

  std::shared_ptr<TlsSource> tls_;
};

}  // namespace

Network::Network(caf::actor_system& system, std::shared_ptr<TlsSource> tls)
    : system_(system), tls_(std::move(tls)) {
  if (!tls_) {
    middleman_ = system.middleman().actor_handle();
    return;
  }
  const auto broker = system.middleman().named_broker<caf::io::basp_broker>(caf::atom("BASP"));
  middleman_ = system.spawn<TlsMiddleman, caf::detached + caf::hidden>(broker, tls_);
}

Network::~Network() {
  if (!tls_) return;  // CAF's own ends with the system
  caf::scoped_actor self{system_};
  self->send_exit(middleman_, caf::exit_reason::kill);
  self->wait_for(middleman_);
}

Result<std::shared_ptr<TlsSource>> load_tls(const TopologyOptions& options) {
  if (options.tls_certificate.empty()) return std::shared_ptr<TlsSource>();
  return TlsSource::open(
      {.certificate = options.tls_certificate, .key = options.tls_key, .ca = options.tls_ca});
}

Result<void> probe_node(const std::shared_ptr<TlsSource>& tls, const std::string& host,
                        std::uint16_t port) {
  return tls ? probe_tls(tls->context(), host, port, kProbeTimeout)
             : probe_tcp(host, port, kProbeTimeout);
}

namespace {

std::string where(const std::string& host, std::uint16_t port) {
  return host + ":" + std::to_string(port);
}

template <class... Answer, class... Question>
Result<std::tuple<Answer...>> ask_middleman(caf::actor_system& system,
                                            const caf::io::middleman_actor& middleman,
                                            ErrorCode code, const std::string& what,
                                            Question&&... question) {
  caf::scoped_actor self{system};
  std::optional<std::tuple<Answer...>> answer;
  std::string failure;
  self->request(middleman, kConnectTimeout, std::forward<Question>(question)...)
      .receive([&](Answer&... values) { answer.emplace(std::move(values)...); },
               [&](const caf::error& error) { failure = to_text(error, system); });
  if (!answer) return Error{code, what + ": " + failure};
  return std::move(*answer);
}

using Found = std::tuple<caf::node_id, caf::strong_actor_ptr, std::set<std::string>>;

Result<Found> connect_there(caf::actor_system& system, const caf::io::middleman_actor& middleman,
                            const std::string& host, std::uint16_t port) {
  return ask_middleman<caf::node_id, caf::strong_actor_ptr, std::set<std::string>>(
      system, middleman, ErrorCode::kUnavailable, where(host, port), caf::connect_atom::value, host,
      port);
}

}  // namespace

Result<std::uint16_t> Network::publish(const SupervisorActor& supervisor, const std::string& host,
                                       std::uint16_t port) {
  ASSIGN_OR_RETURN(
      const auto opened,
      ask_middleman<std::uint16_t>(system_, middleman_, ErrorCode::kIo,
                                   "cannot open " + where(host, port), caf::publish_atom::value,
                                   port, caf::actor_cast<caf::strong_actor_ptr>(supervisor),
                                   system_.message_types<SupervisorActor>(), host, true));
  return std::get<0>(opened);
}

Result<std::uint16_t> Network::open(const std::string& host) {
  ASSIGN_OR_RETURN(const auto opened,
                   ask_middleman<std::uint16_t>(
                       system_, middleman_, ErrorCode::kIo, "cannot open a port of " + host,
                       caf::open_atom::value, std::uint16_t{0}, host, false));
  return std::get<0>(opened);
}

Result<SupervisorActor> Network::find_supervisor(const std::string& host, std::uint16_t port) {
  RETURN_IF_ERROR(probe_node(tls_, host, port));
  ASSIGN_OR_RETURN(const Found found, connect_there(system_, middleman_, host, port));
  const auto& [node, actor, interface] = found;
  if (!actor || !system_.assignable(interface, system_.message_types<SupervisorActor>()))
    return Error{ErrorCode::kUnsupported, where(host, port) + " is no supervisor of this build"};
  return caf::actor_cast<SupervisorActor>(actor);
}

Result<void> Network::connect(const std::string& host, std::uint16_t port) {
  RETURN_IF_ERROR(probe_node(tls_, host, port));
  RETURN_IF_ERROR(connect_there(system_, middleman_, host, port));
  return {};
}

}  // namespace troupe
