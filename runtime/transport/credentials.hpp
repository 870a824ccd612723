#pragma once
// Mutual authentication of nodes: by certificates, or by a shared secret.

#include <chrono>
#include <memory>
#include <string>

#include "runtime/transport/session.hpp"
#include "runtime/transport/tls.hpp"

namespace troupe {

/// Thread-safe.
class Credentials {
 public:
  explicit Credentials(std::shared_ptr<TlsSource> tls) : tls_(std::move(tls)) {}
  explicit Credentials(std::string secret) : secret_(std::move(secret)) {}

  /// Pre: the socket is connected and does not block.
  [[nodiscard]] std::shared_ptr<Session> begin(int socket, Session::Side side) const;

  /// Connects, authenticates, and waits for the first byte of the other side, which shows that it
  /// has accepted us. Errors have the address and the reason of either side.
  [[nodiscard]] Result<void> probe(const std::string& host, std::uint16_t port,
                                   std::chrono::milliseconds timeout) const;

  /// The first line of the file. Errors: of read_file; fewer than 16 characters.
  [[nodiscard]] static Result<std::string> read_secret(const std::string& file);

 private:
  const std::shared_ptr<TlsSource> tls_;  // null: the secret is used
  const std::string secret_;
};

}  // namespace troupe
