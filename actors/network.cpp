#include "actors/network.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <caf/io/middleman_actor_impl.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/network/doorman_impl.hpp>
#include <caf/io/network/stream_impl.hpp>
#include <chrono>
#include <map>
#include <set>

#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/tcp_probe.hpp"
#include "runtime/transport/frame_gate.hpp"
#include "runtime/transport/handshakes.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
namespace net = caf::io::network;

/// CAF's value for one end of a connection; empty if it was closed.
template <class T>
T value_or_empty(const caf::expected<T>& value) {
  return value ? *value : T{};
}

constexpr auto kProbeTimeout = 2000ms;
constexpr auto kConnectTimeout = 5s;
constexpr auto kHandshakeTimeout = 5000ms;
constexpr std::size_t kMaxHandshakes = 128;
/// An identical rejection is logged again after this time.
constexpr double kRefusalInterval_s = 60;

// ---- Protocol ----------------------------------------------------------------------------------

#if TROUPE_CAF_TYPE_IDS

using Bytes = caf::byte_buffer;
const std::string kBroker = "BASP";

/// Null: the serialisation in frames differs since CAF 0.18, which validates it itself.
std::shared_ptr<const FrameVocabulary> make_vocabulary(caf::actor_system&, Network::Side) {
  return nullptr;
}

#else

using Bytes = std::vector<char>;
constexpr caf::atom_value kBroker = caf::atom("BASP");

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
constexpr FieldKind kind_of() {
  if constexpr (Reflected<T>) return FieldKind::kBytes;
  return IsVector<T>::value ? FieldKind::kHandles : FieldKind::kHandle;
}

template <class Block, std::size_t... i>
void add_types(std::map<std::string, FieldKind>& types, std::index_sequence<i...>) {
  (types.emplace(caf::type_name_by_id<Block::begin + i>::value,
                 kind_of<typename caf::type_by_id<Block::begin + i>::type>()),
   ...);
}

template <class Block>
void add_types(std::map<std::string, FieldKind>& types) {
  add_types<Block>(types, std::make_index_sequence<Block::end - Block::begin>());
}

constexpr std::uint64_t word(caf::atom_value atom) { return static_cast<std::uint64_t>(atom); }

std::shared_ptr<const FrameVocabulary> make_vocabulary(caf::actor_system& system,
                                                       Network::Side side) {
  FrameVocabulary vocabulary;
  vocabulary.may_be_ended = side == Network::Side::kNode;
  std::vector<char> self;
  caf::binary_serializer sink(system, self);
  caf::node_id node = system.node();
  CHECK(!sink(node) && self.size() == kNodeIdBytes, self.size());
  std::copy(self.begin(), self.end(), vocabulary.self.begin());
  vocabulary.no_node = word(caf::atom(""));
  add_types<caf::id_block::troupe>(vocabulary.types);
  add_types<caf::id_block::troupe_handles>(vocabulary.types);
  vocabulary.types.emplace("ActorHandles", FieldKind::kHandles);
  vocabulary.system = {{"@unit", FieldKind::kUnit},    {"@error", FieldKind::kError},
                       {"@exit", FieldKind::kExit},    {"@str", FieldKind::kText},
                       {"@atom", FieldKind::kAtom},    {"@i8", FieldKind::kNumber8},
                       {"@u8", FieldKind::kNumber8},   {"@i16", FieldKind::kNumber16},
                       {"@u16", FieldKind::kNumber16}, {"@i32", FieldKind::kNumber32},
                       {"@u32", FieldKind::kNumber32}, {"@i64", FieldKind::kNumber64},
                       {"@u64", FieldKind::kNumber64}, {"bool", FieldKind::kNumber8}};
  vocabulary.greeted = word(caf::atom("SpawnServ"));
  vocabulary.greeting = {caf::sys_atom::uint_value(), caf::get_atom::uint_value()};
  vocabulary.greeting_answer = caf::ok_atom::uint_value();
  return std::make_shared<const FrameVocabulary>(std::move(vocabulary));
}

#endif

// ---- Connection to CAF -------------------------------------------------------------------------

/// Logs each rejected peer with its reason once, so that a stranger cannot fill the log.
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

/// Shared by all connections of a process. Except for the handshakes it is used in CAF's single
/// network thread.
struct Gatekeeper {
  std::shared_ptr<const Credentials> credentials;
  std::shared_ptr<const FrameVocabulary> vocabulary;
  RefusalLog refusals;
  Handshakes handshakes{kMaxHandshakes, kHandshakeTimeout};
};

/// The inner side of the gate, which CAF's stream reads from and writes to.
class GatePolicy {
 public:
  explicit GatePolicy(FrameGate gate) : gate_(std::move(gate)) {}

  net::rw_state read_some(std::size_t& count, int, void* data, std::size_t size) {
    return result(count, gate_.read({static_cast<char*>(data), size}));
  }
  net::rw_state write_some(std::size_t& count, int, const void* data, std::size_t size) {
    return result(count, gate_.write({static_cast<const char*>(data), size}));
  }
  /// Data buffered in the gate does not make the socket ready.
  bool must_read_more(int, std::size_t) const { return gate_.num_ready() > 0; }
  [[nodiscard]] const FrameGate& gate() const { return gate_; }

 private:
  static net::rw_state result(std::size_t& count, std::optional<std::size_t> done) {
    count = done.value_or(0);
    return done ? net::rw_state::success : net::rw_state::failure;
  }

  FrameGate gate_;
};

class GateStream : public net::stream {
 public:
  GateStream(net::default_multiplexer& multiplexer, int socket,
             const std::shared_ptr<Gatekeeper>& keeper, Session::Side side)
      : stream(multiplexer, socket),
        keeper_(keeper),
        session_(keeper->credentials->begin(socket, side)),
        policy_(FrameGate(session_, FrameCheck(keeper->vocabulary, side))),
        address_(value_or_empty(net::remote_addr_of_fd(socket))) {}
  /// The handshakes may hold a duplicate of the socket: closing it would not end the connection.
  ~GateStream() override { shutdown(fd(), SHUT_RDWR); }

  void handle_event(net::operation operation) override {
    handle_event_impl(operation, policy_);
    if (told_ || policy_.gate().error().empty()) return;
    told_ = true;
    keeper_->refusals.add(address_, policy_.gate().error());
  }
  [[nodiscard]] const std::shared_ptr<Session>& session() const { return session_; }

 private:
  std::shared_ptr<Gatekeeper> keeper_;
  std::shared_ptr<Session> session_;
  GatePolicy policy_;
  std::string address_;  ///< queried early, since it is unknown after the peer has disconnected
  bool told_ = false;
};

/// A connection as seen by the broker.
class GateScribe : public caf::io::scribe {
 public:
  GateScribe(net::default_multiplexer& multiplexer, int socket,
             const std::shared_ptr<Gatekeeper>& keeper, Session::Side side)
      : scribe(net::conn_hdl_from_socket(socket)), stream_(multiplexer, socket, keeper, side) {}

  void configure_read(caf::io::receive_policy::config config) override {
    stream_.configure_read(config);
    if (std::exchange(launched_, true)) return;
    stream_.start(this);
    // Starts the handshake even if there is nothing to send yet.
    stream_.force_empty_write(this);
  }
  void ack_writes(bool enable) override { stream_.ack_writes(enable); }
  Bytes& wr_buf() override { return stream_.wr_buf(); }
  Bytes& rd_buf() override { return stream_.rd_buf(); }
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
  [[nodiscard]] const std::shared_ptr<Session>& session() const { return stream_.session(); }

 private:
  GateStream stream_;
  bool launched_ = false;
};

class GateDoorman : public net::doorman_impl {
 public:
  GateDoorman(net::default_multiplexer& multiplexer, int socket, std::shared_ptr<Gatekeeper> keeper)
      : doorman_impl(multiplexer, socket), keeper_(std::move(keeper)) {}

  bool new_connection() override {
    const int socket = acceptor_.accepted_socket();
    if (detached()) {
      close(socket);
      return false;
    }
    net::nonblocking(socket, true);
    net::tcp_nodelay(socket, true);
    auto scribe = caf::make_counted<GateScribe>(acceptor_.backend(), socket, keeper_,
                                                Session::Side::kAccepts);
    keeper_->handshakes.add(scribe->session(), socket);
    const auto handle = scribe->hdl();
    parent()->add_scribe(std::move(scribe));
    return doorman::new_connection(&acceptor_.backend(), handle);
  }

 private:
  std::shared_ptr<Gatekeeper> keeper_;
};

class GateMiddleman : public caf::io::middleman_actor_impl {
 public:
  GateMiddleman(caf::actor_config& config, caf::actor broker,
                const std::shared_ptr<const Credentials>& credentials, Network::Side side)
      : middleman_actor_impl(config, std::move(broker)), keeper_(std::make_shared<Gatekeeper>()) {
    keeper_->credentials = credentials;
    keeper_->vocabulary = make_vocabulary(system(), side);
  }
  const char* name() const override { return "gate_middleman"; }

 protected:
  caf::expected<caf::io::scribe_ptr> connect(const std::string& host, std::uint16_t port) override {
    auto connection = connect_tcp(host, port, kProbeTimeout);
    if (!connection.ok()) return caf::make_error(caf::sec::cannot_connect_to_node);
    const int socket = connection->release();
    net::tcp_nodelay(socket, true);
    return caf::io::scribe_ptr(
        caf::make_counted<GateScribe>(multiplexer(), socket, keeper_, Session::Side::kConnects));
  }
  caf::expected<caf::io::doorman_ptr> open(std::uint16_t port, const char* host,
                                           bool reuse) override {
    auto socket = net::new_tcp_acceptor_impl(port, host, reuse);
    if (!socket) return std::move(socket.error());
    return caf::io::doorman_ptr(caf::make_counted<GateDoorman>(multiplexer(), *socket, keeper_));
  }

 private:
  net::default_multiplexer& multiplexer() {
    return dynamic_cast<net::default_multiplexer&>(system().middleman().backend());
  }

  std::shared_ptr<Gatekeeper> keeper_;
};

}  // namespace

Network::Network(caf::actor_system& system, std::shared_ptr<const Credentials> credentials,
                 Side side)
    : system_(system), credentials_(std::move(credentials)) {
  const auto broker = system.middleman().named_broker<caf::io::basp_broker>(kBroker);
  middleman_ = system.spawn<GateMiddleman, caf::detached + caf::hidden>(broker, credentials_, side);
}

Network::~Network() {
  caf::scoped_actor self{system_};
  self->send_exit(middleman_, caf::exit_reason::kill);
  self->wait_for(middleman_);
}

Result<std::shared_ptr<const Credentials>> load_credentials(const TopologyOptions& options,
                                                            std::string secret) {
  if (!options.tls_certificate.empty()) {
    ASSIGN_OR_RETURN(auto tls, TlsSource::open({.certificate = options.tls_certificate,
                                                .key = options.tls_key,
                                                .ca = options.tls_ca}));
    return std::make_shared<const Credentials>(std::move(tls));
  }
  if (!options.cluster_secret_file.empty()) {
    ASSIGN_OR_RETURN(secret, Credentials::read_secret(options.cluster_secret_file));
  }
  return std::make_shared<const Credentials>(std::move(secret));
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
  ask(self.ptr(), middleman, kConnectTimeout, std::forward<Question>(question)...)
      .receive([&](Answer&... values) { answer.emplace(std::move(values)...); },
               [&](const caf::error& error) { failure = to_text(error, system); });
  if (!answer) return Error{code, what + ": " + failure};
  return std::move(*answer);
}

using Found = std::tuple<caf::node_id, caf::strong_actor_ptr, std::set<std::string>>;

Result<Found> connect_there(caf::actor_system& system, const caf::io::middleman_actor& middleman,
                            const std::string& host, std::uint16_t port) {
  return ask_middleman<caf::node_id, caf::strong_actor_ptr, std::set<std::string>>(
      system, middleman, ErrorCode::kUnavailable, where(host, port), caf::connect_atom_v, host,
      port);
}

}  // namespace

Result<std::uint16_t> Network::publish(const SupervisorActor& supervisor, const std::string& host,
                                       std::uint16_t port) {
  ASSIGN_OR_RETURN(const auto opened, ask_middleman<std::uint16_t>(
                                          system_, middleman_, ErrorCode::kIo,
                                          "cannot open " + where(host, port), caf::publish_atom_v,
                                          port, caf::actor_cast<caf::strong_actor_ptr>(supervisor),
                                          system_.message_types<SupervisorActor>(), host, true));
  return std::get<0>(opened);
}

Result<std::uint16_t> Network::open(const std::string& host) {
  ASSIGN_OR_RETURN(const auto opened,
                   ask_middleman<std::uint16_t>(system_, middleman_, ErrorCode::kIo,
                                                "cannot open a port of " + host, caf::open_atom_v,
                                                std::uint16_t{0}, host, false));
  return std::get<0>(opened);
}

Result<SupervisorActor> Network::find_supervisor(const std::string& host, std::uint16_t port) {
  RETURN_IF_ERROR(credentials_->probe(host, port, kProbeTimeout));
  ASSIGN_OR_RETURN(const Found found, connect_there(system_, middleman_, host, port));
  const auto& [node, actor, interface] = found;
  if (!actor || !system_.assignable(interface, system_.message_types<SupervisorActor>()))
    return Error{ErrorCode::kUnsupported, where(host, port) + " is not a supervisor of this build"};
  return caf::actor_cast<SupervisorActor>(actor);
}

Result<void> Network::connect(const std::string& host, std::uint16_t port) {
  RETURN_IF_ERROR(credentials_->probe(host, port, kProbeTimeout));
  RETURN_IF_ERROR(connect_there(system_, middleman_, host, port));
  return {};
}

}  // namespace troupe
