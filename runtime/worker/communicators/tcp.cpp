#include "runtime/worker/communicators/tcp.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/poll.hpp"
#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

constexpr std::uint32_t kMagic = 0x54726f76;
constexpr std::uint32_t kVersion = 2;

/// The answer to a Hello; none for a foreign peer.
enum Answer : std::uint32_t { kWelcome = 1, kOtherBuild, kOutdated, kProveIt };
constexpr auto kHelloTimeout = 2s;
constexpr auto kSlice = 100ms;
constexpr auto kConnectInterval = 20ms;
constexpr auto kPortTimeout = 5s;

/// Between two ranks. Collective operations and send/recv may be ahead of each other.
enum Lane : std::uint32_t { kCollective, kPointToPoint, kReason, kNumLanes };

/// The first bytes of a connection, from the one that opened it.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t generation = 0;
  std::int32_t size = 0;
  std::int32_t rank = 0;
  std::uint32_t lane = 0;
  std::uint32_t port = 0;  ///< where this rank listens
  std::array<std::uint8_t, 32> nonce{};
};
static_assert(sizeof(Hello) == 7 * 4 + 32, "all of it is signed");

/// The answer to a Hello that this build can read, kProveIt: the secret is known here, is it there?
struct Challenge {
  std::array<std::uint8_t, 32> nonce{};
  std::array<std::uint8_t, 32> proof{};
};

struct Address {
  std::uint32_t ip = 0;  ///< network order
  std::uint32_t port = 0;
};

std::string text_of(const char* action) {
  return std::string("cannot ") + action + ": " + std::strerror(errno);
}

/// A partition of the network ends a connection after about 5 s.
void set_up(const FileDescriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
}

bool send_all(const FileDescriptor& socket, std::span<const std::byte> data,
              Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t sent = ::send(socket.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data = data.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN || !wait_ready(socket.get(), POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool recv_all(const FileDescriptor& socket, std::span<std::byte> data, Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t received = ::recv(socket.get(), data.data(), data.size(), 0);
    if (received > 0) {
      data = data.subspan(static_cast<std::size_t>(received));
    } else if (received == 0 || errno != EAGAIN || !wait_ready(socket.get(), POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// Each side signs both nonces under a name of its own, so that neither's proof can be sent back to
/// it, and none can be used twice.
std::array<std::uint8_t, 32> proof_of(std::string_view side, const std::string& secret,
                                      const Hello& hello,
                                      const std::array<std::uint8_t, 32>& nonce) {
  std::vector<std::byte> message;
  const auto add = [&](std::span<const std::byte> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  add(std::as_bytes(std::span(side)));
  add(bytes_of(hello));
  add(bytes_of(nonce));
  return hmac_sha256(secret, message);
}
constexpr std::string_view kAcceptor = "acceptor";
constexpr std::string_view kConnector = "connector";

/// Owns the connections while the ranks meet.
class Meeting {
 public:
  Meeting(const CommunicatorOptions& options, Clock::time_point deadline)
      : options_(options), deadline_(deadline) {
    for (auto& lane : sockets_) lane.resize(static_cast<std::size_t>(options.size));
  }

  /// sockets[lane][rank]
  Result<std::array<std::vector<FileDescriptor>, kNumLanes>> meet() {
    ASSIGN_OR_RETURN(const Address first, resolve());
    std::vector<Address> addresses(static_cast<std::size_t>(options_.size));
    addresses[0] = first;
    RETURN_IF_ERROR(listen(options_.rank == 0 ? first : Address{}));
    if (options_.rank == 0) {
      RETURN_IF_ERROR(accept_peers(1, &addresses));
      for (std::size_t peer = 1; peer < addresses.size(); ++peer)
        if (!send_all(sockets_[0][peer], std::as_bytes(std::span(addresses)), deadline_))
          return gone(peer);
      return std::move(sockets_);
    }
    RETURN_IF_ERROR(connect_to(0, first));
    if (!recv_all(sockets_[0][0], std::as_writable_bytes(std::span(addresses)), deadline_))
      return Error{ErrorCode::kUnavailable,
                   options_.rendezvous + " did not send the addresses of the other ranks"};
    for (std::int32_t peer = 1; peer < options_.rank; ++peer)
      RETURN_IF_ERROR(connect_to(peer, addresses[static_cast<std::size_t>(peer)]));
    RETURN_IF_ERROR(accept_peers(options_.rank + 1, nullptr));
    return std::move(sockets_);
  }

 private:
  [[nodiscard]] Error gone(std::size_t peer) const {
    return {ErrorCode::kUnavailable, "rank " + std::to_string(peer) + " is gone"};
  }

  [[nodiscard]] Error newer_meeting() const {
    return {ErrorCode::kUnavailable, "the other ranks of " + options_.rendezvous + " meet anew"};
  }

  Result<Address> resolve() const {
    const std::string place = options_.rendezvous.substr(std::strlen("tcp:"));
    const std::size_t colon = place.rfind(':');
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (colon == std::string::npos ||
        getaddrinfo(place.substr(0, colon).c_str(), place.substr(colon + 1).c_str(), &hints,
                    &found) != 0)
      return invalid_argument("rendezvous is '" + options_.rendezvous +
                                  "', not tcp:HOST:PORT of a host that can be found",
                              "rendezvous");
    sockaddr_in address{};
    std::memcpy(&address, found->ai_addr, sizeof address);
    freeaddrinfo(found);
    return Address{address.sin_addr.s_addr, ntohs(address.sin_port)};
  }

  /// An older meeting of this rank may still be there: the first of the others that comes ends it.
  Result<void> listen(Address where) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = where.ip;
    address.sin_port = htons(static_cast<std::uint16_t>(where.port));
    const auto try_listen = [&] {
      listener_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int on = 1;
      setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      return listener_.valid() &&
             bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
             ::listen(listener_.get(), options_.size * static_cast<int>(kNumLanes)) == 0;
    };
    const auto port_deadline = std::min(deadline_, Clock::now() + kPortTimeout);
    while (!try_listen()) {
      if (errno != EADDRINUSE || Clock::now() >= port_deadline)
        return Error{ErrorCode::kIo, text_of(("listen at " + options_.rendezvous).c_str())};
      std::this_thread::sleep_for(kConnectInterval);
    }
    socklen_t size = sizeof address;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    set_up(listener_);
    return {};
  }

  [[nodiscard]] Hello hello(std::uint32_t lane) const {
    Hello hello{.generation = options_.generation,
                .size = options_.size,
                .rank = options_.rank,
                .lane = lane,
                .port = port_};
    fill_random(hello.nonce);
    return hello;
  }

  /// The other side's part of the authentication. False: it failed, or the peer was lost.
  bool accept_proof(const FileDescriptor& peer, const Hello& said, Clock::time_point deadline) {
    Challenge challenge;
    fill_random(challenge.nonce);
    challenge.proof = proof_of(kAcceptor, options_.secret, said, challenge.nonce);
    const std::uint32_t prove_it = kProveIt;
    std::array<std::uint8_t, 32> proof{};
    return send_all(peer, bytes_of(prove_it), deadline) &&
           send_all(peer, bytes_of(challenge), deadline) &&
           recv_all(peer, writable_bytes_of(proof), deadline) &&
           same_secret(proof, proof_of(kConnector, options_.secret, said, challenge.nonce));
  }

  /// After a Hello, of which the other side asks whether we know the secret.
  bool prove(const FileDescriptor& peer, const Hello& hello) {
    Challenge challenge;
    if (!recv_all(peer, writable_bytes_of(challenge), deadline_)) return false;
    if (!same_secret(challenge.proof,
                     proof_of(kAcceptor, options_.secret, hello, challenge.nonce))) {
      stranger_ = true;
      return false;
    }
    return send_all(peer, bytes_of(proof_of(kConnector, options_.secret, hello, challenge.nonce)),
                    deadline_);
  }

  Result<void> connect_to(std::int32_t peer, Address address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = address.ip;
    to.sin_port = htons(static_cast<std::uint16_t>(address.port));
    for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
      FileDescriptor& connection = sockets_[lane][static_cast<std::size_t>(peer)];
      while (!connection.valid()) {
        FileDescriptor attempt(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!attempt.valid()) return Error{ErrorCode::kIo, text_of("open a socket")};
        set_up(attempt);
        int error = 0;
        socklen_t size = sizeof error;
        // In progress: the result is read from the socket later.
        static_cast<void>(connect(attempt.get(), reinterpret_cast<sockaddr*>(&to), sizeof to));
        const bool connected =
            wait_ready(attempt.get(), POLLOUT, deadline_) &&
            getsockopt(attempt.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
        // The other side says yes to our Hello, or closes: it may still be in an older meeting.
        std::uint32_t answer = 0;
        const Hello hello = this->hello(lane);
        if (connected && send_all(attempt, bytes_of(hello), deadline_) &&
            recv_all(attempt, writable_bytes_of(answer), deadline_) &&
            (answer != kProveIt ||
             (prove(attempt, hello) && recv_all(attempt, writable_bytes_of(answer), deadline_)))) {
          if (answer == kOutdated) return newer_meeting();
          if (answer != kWelcome)
            return Error{ErrorCode::kUnsupported,
                         "the peer at " + options_.rendezvous + " is of another build"};
          connection = std::move(attempt);
          break;
        }
        if (Clock::now() >= deadline_)
          return Error{ErrorCode::kTimeout,
                       "rank " + std::to_string(peer) + " did not answer at " +
                           options_.rendezvous + " within " + std::to_string(options_.timeout_s) +
                           " s" + (stranger_ ? "; who did is not of this engine" : "")};
        std::this_thread::sleep_for(kConnectInterval);
      }
    }
    return {};
  }

  /// All lanes of the ranks from first_rank on. Foreign peers are rejected.
  Result<void> accept_peers(std::int32_t first_rank, std::vector<Address>* addresses) {
    std::int32_t num_missing = (options_.size - first_rank) * static_cast<std::int32_t>(kNumLanes);
    while (num_missing > 0) {
      if (!wait_ready(listener_.get(), POLLIN, deadline_)) {
        std::string names;
        for (std::int32_t peer = first_rank; peer < options_.size; ++peer)
          if (!sockets_[kReason][static_cast<std::size_t>(peer)].valid())
            names += (names.empty() ? "" : ", ") + std::to_string(peer);
        return Error{ErrorCode::kTimeout, "rank " + names + " did not connect to " +
                                              options_.rendezvous + " within " +
                                              std::to_string(options_.timeout_s) + " s"};
      }
      sockaddr_in from{};
      socklen_t size = sizeof from;
      FileDescriptor peer(
          accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
      if (!peer.valid()) continue;
      set_up(peer);
      Hello said;
      const auto hello_deadline = std::min(deadline_, Clock::now() + kHelloTimeout);
      if (!recv_all(peer, writable_bytes_of(said), hello_deadline)) continue;
      if (said.magic != kMagic) continue;
      if (said.version == kVersion && !accept_proof(peer, said, hello_deadline)) continue;
      const std::uint32_t answer = said.version != kVersion                ? kOtherBuild
                                   : said.generation < options_.generation ? kOutdated
                                                                           : kWelcome;
      if (answer == kWelcome && said.generation > options_.generation) return newer_meeting();
      const bool fits = said.size == options_.size && said.rank >= first_rank &&
                        said.rank < options_.size && said.lane < kNumLanes &&
                        !sockets_[said.lane][static_cast<std::size_t>(said.rank)].valid();
      if (answer == kWelcome && !fits) continue;
      if (!send_all(peer, bytes_of(answer), deadline_)) continue;
      if (answer == kOtherBuild)
        return Error{ErrorCode::kUnsupported,
                     "a peer at " + options_.rendezvous + " is of another build"};
      if (answer == kOutdated) continue;
      FileDescriptor& place = sockets_[said.lane][static_cast<std::size_t>(said.rank)];
      if (addresses != nullptr)
        (*addresses)[static_cast<std::size_t>(said.rank)] = {from.sin_addr.s_addr, said.port};
      place = std::move(peer);
      --num_missing;
    }
    return {};
  }

  const CommunicatorOptions& options_;
  Clock::time_point deadline_;
  FileDescriptor listener_;
  std::uint32_t port_ = 0;
  bool stranger_ = false;  ///< a peer without the secret answered
  std::array<std::vector<FileDescriptor>, kNumLanes> sockets_;
};

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(const CommunicatorOptions& options,
                  std::array<std::vector<FileDescriptor>, kNumLanes> sockets)
      : Communicator(options.rank, options.size, options.group_size),
        timeout_s_(options.timeout_s),
        sockets_(std::move(sockets)) {}

  /// Butterfly: with the neighbour, then the pairs with each other; both sides add the same two
  /// numbers, which is the canonical tree.
  void all_reduce(std::span<float> data) override {
    CHECK(group_size() == 1 || group_size() == 2 || group_size() == 4, group_size());
    for (std::int32_t distance = 1; distance < group_size(); distance *= 2) {
      const std::int32_t peer = group_begin() + (group_rank() ^ distance);
      received_.resize(data.size());
      if (!exchange(std::as_bytes(data), peer, std::as_writable_bytes(std::span(received_)), peer))
        return;
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = data[i] + received_[i];
    }
  }

  void all_gather(std::span<const std::byte> data, std::span<std::byte> all) override {
    CHECK(all.size() == static_cast<std::size_t>(group_size()) * data.size(), all.size(),
          data.size());
    const auto place = [&](std::int32_t member) {
      return all.subspan(static_cast<std::size_t>(member) * data.size(), data.size());
    };
    std::ranges::copy(data, place(group_rank()).begin());
    for (std::int32_t distance = 1; distance < group_size(); ++distance) {
      const std::int32_t to = (group_rank() + distance) % group_size();
      const std::int32_t from = (group_rank() + group_size() - distance) % group_size();
      if (!exchange(data, group_begin() + to, place(from), group_begin() + from)) return;
    }
  }

  void send(std::span<const std::byte> data, std::int32_t to) override {
    static_cast<void>(transfer(kPointToPoint, data, to, {}, to));
  }
  bool recv(std::span<std::byte> data, std::int32_t from) override {
    return transfer(kPointToPoint, {}, from, data, from);
  }

  void barrier() override {
    const std::byte here{1};
    std::vector<std::byte> all(static_cast<std::size_t>(group_size()));
    all_gather({&here, 1}, all);
  }

  void abort(const Error& reason) override {
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = reason;
      failed_.store(true);
    }
    for (std::int32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      // A short text into an empty buffer: it does not block.
      const FileDescriptor& socket = socket_of(kReason, peer);
      static_cast<void>(::send(socket.get(), reason.message.data(),
                               std::min(reason.message.size(), kMaxReasonBytes),
                               MSG_NOSIGNAL | MSG_DONTWAIT));
      for (std::uint32_t lane = 0; lane < kNumLanes; ++lane)
        shutdown(socket_of(lane, peer).get(), SHUT_WR);
    }
  }

  [[nodiscard]] Result<void> status() const override {
    if (!failed_.load()) return {};
    const std::lock_guard lock(mutex_);
    return Error(*error_);
  }

 private:
  static constexpr std::size_t kMaxReasonBytes = 1000;

  [[nodiscard]] const FileDescriptor& socket_of(std::uint32_t lane, std::int32_t peer) const {
    return sockets_[lane][static_cast<std::size_t>(peer)];
  }

  bool exchange(std::span<const std::byte> out, std::int32_t to, std::span<std::byte> in,
                std::int32_t from) {
    return transfer(kCollective, out, to, in, from);
  }

  /// Sends and receives at the same time, so that two ranks with large messages do not block each
  /// other. False: the communicator has failed.
  bool transfer(Lane lane, std::span<const std::byte> out, std::int32_t to, std::span<std::byte> in,
                std::int32_t from) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
    while (true) {
      if (!in.empty()) {
        const ssize_t received = ::recv(socket_of(lane, from).get(), in.data(), in.size(), 0);
        if (received > 0) in = in.subspan(static_cast<std::size_t>(received));
        if (received == 0 || (received < 0 && errno != EAGAIN)) return lost(from);
      }
      // What had come before a failure is still received; nothing more is sent.
      if (!out.empty() && failed_.load()) return false;
      if (!out.empty()) {
        const ssize_t sent =
            ::send(socket_of(lane, to).get(), out.data(), out.size(), MSG_NOSIGNAL);
        if (sent > 0) out = out.subspan(static_cast<std::size_t>(sent));
        if (sent < 0 && errno != EAGAIN) return lost(to);
      }
      if (in.empty() && out.empty()) return true;
      std::array<pollfd, 2> ready{};
      nfds_t num_waits = 0;
      if (!in.empty()) ready[num_waits++] = {socket_of(lane, from).get(), POLLIN, 0};
      if (!out.empty()) ready[num_waits++] = {socket_of(lane, to).get(), POLLOUT, 0};
      const int num_ready = poll(ready.data(), num_waits,
                                 static_cast<int>(std::chrono::milliseconds(kSlice).count()));
      if (num_ready > 0) continue;
      if (failed_.load()) return false;
      if (std::int32_t gone = -1; num_ready == 0 && is_reason_there(gone)) return lost(gone);
      if (Clock::now() >= deadline) {
        abort({ErrorCode::kTimeout, "rank " + std::to_string(rank()) + " waited " +
                                        std::to_string(timeout_s_) + " s for rank " +
                                        std::to_string(in.empty() ? to : from)});
        return false;
      }
    }
  }

  /// Whether any rank, perhaps not the one waited for, has failed or ended.
  bool is_reason_there(std::int32_t& peer) const {
    for (peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      pollfd ready{.fd = socket_of(kReason, peer).get(), .events = POLLIN, .revents = 0};
      std::byte first{};
      if (poll(&ready, 1, 0) > 0 && ::recv(ready.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        return true;
    }
    return false;
  }

  /// The connection has ended: with a reason, or just so.
  bool lost(std::int32_t peer) {
    std::string reason(kMaxReasonBytes, '\0');
    const FileDescriptor& socket = socket_of(kReason, peer);
    const ssize_t received = ::recv(socket.get(), reason.data(), reason.size(), MSG_DONTWAIT);
    reason.resize(static_cast<std::size_t>(std::max<ssize_t>(received, 0)));
    if (reason.empty()) reason = "rank " + std::to_string(peer) + " is gone";
    abort({ErrorCode::kUnavailable, reason});
    return false;
  }

  double timeout_s_;
  std::array<std::vector<FileDescriptor>, kNumLanes> sockets_;
  std::vector<float> received_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<Communicator>> create_tcp_communicator(const CommunicatorOptions& options) {
  const auto deadline = Clock::now() + from_seconds(options.timeout_s);
  ASSIGN_OR_RETURN(auto sockets, Meeting(options, deadline).meet());
  return std::unique_ptr<Communicator>(
      std::make_unique<TcpCommunicator>(options, std::move(sockets)));
}

}  // namespace troupe
