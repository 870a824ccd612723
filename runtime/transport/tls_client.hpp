#pragma once
// The client's side of TLS where only the server has a certificate.

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

/// A client's trust store. TLS 1.2 or later. Immutable.
class TlsClientContext {
 public:
  /// `ca`: PEM file; empty: the system's authorities. Errors name it.
  [[nodiscard]] static Result<std::shared_ptr<const TlsClientContext>> load(const std::string& ca);
  [[nodiscard]] SSL_CTX* get() const noexcept { return context_.get(); }

 private:
  explicit TlsClientContext(SSL_CTX* context) : context_(context, &SSL_CTX_free) {}
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

class TlsClientSession final : public Session {
 public:
  /// `host`: the name or address that the server's certificate must have.
  TlsClientSession(std::shared_ptr<const TlsClientContext> context, int socket,
                   const std::string& host);

  /// The first calls shake hands; write sends nothing before that is done.
  std::optional<std::size_t> read(std::span<char> into) override;
  std::optional<std::size_t> write(std::span<const char> from) override;

 private:
  /// Of an operation; nullopt: the connection has ended.
  std::optional<std::size_t> take_result(int result);

  std::shared_ptr<const TlsClientContext> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

}  // namespace troupe
