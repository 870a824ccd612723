#pragma once
// What nodes show each other: certificates, or a secret.

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

  /// Connects, shows what there is to show and waits until the other side has said its first word:
  /// it has let us in then. Errors name the address and what the other side, or this one, does not
  /// like.
  [[nodiscard]] Result<void> probe(const std::string& host, std::uint16_t port,
                                   std::chrono::milliseconds timeout) const;

  /// The first line of the file. Errors: of read_file; fewer than 16 characters.
  [[nodiscard]] static Result<std::string> read_secret(const std::string& file);

 private:
  const std::shared_ptr<TlsSource> tls_;  // null: the secret
  const std::string secret_;
};

}  // namespace troupe
