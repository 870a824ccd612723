#include "runtime/transport/credentials.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "runtime/base/file.hpp"
#include "runtime/base/poll.hpp"
#include "runtime/base/tcp_probe.hpp"
#include "runtime/transport/secret_session.hpp"

namespace troupe {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretFileBytes = 64 << 10;

std::shared_ptr<Session> Credentials::begin(int socket, Session::Side side) const {
  if (tls_) return std::make_shared<TlsSession>(tls_->context(), socket, side);
  return std::make_shared<SecretSession>(secret_, socket, side);
}

namespace {

/// Reads what the peer has sent: closed before that, the connection would be reset, an error to the
/// peer.
void close_gracefully(int connection, std::chrono::steady_clock::time_point deadline) {
  ::shutdown(connection, SHUT_WR);
  std::array<char, 1024> rest;
  while (wait_ready(connection, POLLIN, deadline) &&
         ::recv(connection, rest.data(), rest.size(), 0) > 0) {
  }
}

}  // namespace

Result<void> Credentials::probe(const std::string& host, std::uint16_t port,
                                std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::string where = host + ":" + std::to_string(port);
  const std::string protocol = tls_ ? "TLS handshake" : "secret handshake";
  ASSIGN_OR_RETURN(const FileDescriptor connection, connect_tcp(host, port, timeout));
  const auto session = begin(connection.get(), Session::Side::kConnects);
  while (true) {
    std::array<char, 64> word;
    auto received = session->must_write() ? session->write({}) : 0;
    if (received) received = session->read(word);
    if (received && *received > 0) {
      close_gracefully(connection.get(), deadline);
      return {};
    }
    if (!received) {
      return Error{
          ErrorCode::kUnavailable,
          where + ": " + protocol + " failed: " +
              (session->error().empty() ? "the peer closed the connection" : session->error())};
    }
    const auto events = static_cast<short>(POLLIN | (session->must_write() ? POLLOUT : 0));
    if (!wait_ready(connection.get(), events, deadline))
      return Error{ErrorCode::kTimeout, where + ": no response to the " + protocol};
  }
}

Result<std::string> Credentials::read_secret(const std::string& file) {
  ASSIGN_OR_RETURN(std::string secret, read_file(file, kMaxSecretFileBytes));
  secret.erase(std::min(secret.size(), secret.find_first_of("\r\n")));
  if (secret.size() < kMinSecretBytes) {
    return invalid_argument("cluster-secret-file " + file + ": its first line has " +
                                std::to_string(secret.size()) + " characters, at least " +
                                std::to_string(kMinSecretBytes) + " are needed",
                            "cluster-secret-file");
  }
  return secret;
}

}  // namespace troupe
