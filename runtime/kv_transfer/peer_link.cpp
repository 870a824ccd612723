#include "runtime/kv_transfer/peer_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "messages/wire.hpp"
#include "runtime/base/tcp_probe.hpp"

namespace troupe {
namespace {

Error link_error(const std::string& what) { return {ErrorCode::kUnavailable, what, {}}; }

/// A name in the abstract namespace. Errors: kUnavailable.
Result<FileDescriptor> connect_local(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!socket.valid() || name.size() + 1 > sizeof address.sun_path)
    return link_error("no local socket for " + name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
    return link_error("cannot connect to " + name + ": " + std::strerror(errno));
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0)
    return link_error("a socket cannot be used: " + std::string(std::strerror(errno)));
  return socket;
}

}  // namespace

std::string to_text(const PeerEndpoint& endpoint) {
  const std::string remote =
      endpoint.host.empty() ? "" : endpoint.host + ":" + std::to_string(endpoint.port);
  return endpoint.local + "|" + remote;
}

Result<PeerEndpoint> parse_peer_endpoint(const std::string& text) {
  const auto wrong = [&] {
    return invalid_argument("'" + text.substr(0, 64) +
                            "' is not an endpoint, expected LOCAL|HOST:PORT");
  };
  const std::size_t bar = text.find('|');
  if (bar == std::string::npos || text.size() > 512) return wrong();
  PeerEndpoint endpoint{.local = text.substr(0, bar)};
  const std::string remote = text.substr(bar + 1);
  if (remote.empty()) return endpoint.local.empty() ? Result<PeerEndpoint>(wrong()) : endpoint;
  const std::size_t colon = remote.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong();
  endpoint.host = remote.substr(0, colon);
  const char* const end = remote.data() + remote.size();
  const auto [stop, error] = std::from_chars(remote.data() + colon + 1, end, endpoint.port);
  if (error != std::errc() || stop != end || endpoint.port == 0) return wrong();
  return endpoint;
}

PeerLink::PeerLink(FileDescriptor socket, std::shared_ptr<Session> session, int stop)
    : socket_(std::move(socket)), session_(std::move(session)), stop_(stop) {}

Result<std::unique_ptr<PeerLink>> PeerLink::connect(
    const PeerEndpoint& endpoint, const std::shared_ptr<const Credentials>& credentials, int stop,
    std::chrono::milliseconds timeout) {
  if (!endpoint.local.empty()) {
    auto socket = connect_local(endpoint.local);
    if (socket.ok()) return std::make_unique<PeerLink>(std::move(*socket), nullptr, stop);
    if (endpoint.host.empty()) return std::move(socket).error();
  }
  if (credentials == nullptr)
    return link_error(endpoint.host +
                      " is another host, for which kv_connector_extra_config has no host");
  ASSIGN_OR_RETURN(FileDescriptor socket, connect_tcp(endpoint.host, endpoint.port, timeout));
  auto session = credentials->begin(socket.get(), Session::Side::kConnects);
  return std::make_unique<PeerLink>(std::move(socket), std::move(session), stop);
}

Result<void> PeerLink::wait(short events, std::optional<SteadyTime> deadline) const {
  std::array<pollfd, 2> ready = {pollfd{.fd = socket_.get(), .events = events, .revents = 0},
                                 pollfd{.fd = stop_, .events = POLLIN, .revents = 0}};
  int left_ms = -1;
  if (deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        *deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return Error{ErrorCode::kTimeout, "the peer does not answer", {}};
    left_ms = static_cast<int>(left.count()) + 1;
  }
  if (::poll(ready.data(), ready.size(), left_ms) < 0 && errno != EINTR)
    return link_error(std::strerror(errno));
  if (ready[1].revents != 0) return Error{ErrorCode::kAborted, "the engine ends", {}};
  return {};
}

Result<void> PeerLink::write_all(std::span<const char> bytes, SteadyTime deadline, int file) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    if (session_ != nullptr) {
      const auto written = session_->write(bytes);
      if (!written) return link_error("the connection has ended: " + session_->error());
      count = *written;
    } else {
      iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
      if (file >= 0) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof file);
        std::memcpy(CMSG_DATA(header), &file, sizeof file);
      }
      const ssize_t written = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (written < 0 && errno != EAGAIN && errno != EINTR)
        return link_error("the connection has ended: " + std::string(std::strerror(errno)));
      count = written > 0 ? static_cast<std::size_t>(written) : 0;
      if (count > 0) file = -1;  // it went with the first byte
    }
    bytes = bytes.subspan(count);
    if (count == 0) RETURN_IF_ERROR(wait(POLLOUT, deadline));
  }
  // What was written before a handshake is sent by reading.
  return {};
}

Result<void> PeerLink::read_all(std::span<char> bytes, std::optional<SteadyTime> deadline,
                                FileDescriptor* file) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    short events = POLLIN;
    if (session_ != nullptr) {
      if (session_->must_write() && !session_->write({}))
        return link_error("the connection has ended: " + session_->error());
      const auto received = session_->read(bytes);
      if (!received)
        return link_error(session_->error().empty() ? "the peer has closed the connection"
                                                    : session_->error());
      count = *received;
      if (session_->must_write()) events = POLLIN | POLLOUT;
    } else {
      iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      if (received == 0) return link_error("the peer has closed the connection");
      if (received < 0 && errno != EAGAIN && errno != EINTR)
        return link_error(std::strerror(errno));
      count = received > 0 ? static_cast<std::size_t>(received) : 0;
      const cmsghdr* const header = received > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      if (header != nullptr && header->cmsg_type == SCM_RIGHTS &&
          header->cmsg_len == CMSG_LEN(sizeof(int))) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
        FileDescriptor owner(descriptor);
        if (file != nullptr) *file = std::move(owner);
      }
    }
    bytes = bytes.subspan(count);
    if (count == 0) RETURN_IF_ERROR(wait(events, deadline));
  }
  return {};
}

Result<void> PeerLink::send(const PeerMessage& message, SteadyTime deadline, int file) {
  std::vector<char> body;
  wire::encode(message, body);
  if (body.size() > kMaxFrameBytes)
    return link_error("a frame has " + std::to_string(body.size()) + " bytes");
  std::vector<char> frame(sizeof(std::uint32_t) + body.size());
  const auto size = static_cast<std::uint32_t>(body.size());
  std::memcpy(frame.data(), &size, sizeof size);
  std::memcpy(frame.data() + sizeof size, body.data(), body.size());
  return write_all(frame, deadline, file);
}

Result<void> PeerLink::send_bytes(std::span<const std::byte> bytes, SteadyTime deadline) {
  return write_all({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, deadline, -1);
}

Result<PeerMessage> PeerLink::receive(std::optional<SteadyTime> idle,
                                      std::chrono::milliseconds timeout, FileDescriptor* file) {
  std::array<char, sizeof(std::uint32_t)> head;
  RETURN_IF_ERROR(read_all(std::span(head).first(1), idle, file));
  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout;
  RETURN_IF_ERROR(read_all(std::span(head).subspan(1), deadline, file));
  std::uint32_t size = 0;
  std::memcpy(&size, head.data(), sizeof size);
  if (size > kMaxFrameBytes)
    return link_error("a frame of " + std::to_string(size) + " bytes was announced");
  std::vector<char> body(size);
  RETURN_IF_ERROR(read_all(body, deadline, file));
  PeerMessage message;
  if (!wire::decode(body.data(), body.size(), message)) return link_error("a frame is malformed");
  return message;
}

Result<void> PeerLink::receive_bytes(std::span<std::byte> bytes, SteadyTime deadline) {
  return read_all({reinterpret_cast<char*>(bytes.data()), bytes.size()}, deadline, nullptr);
}

}  // namespace troupe
