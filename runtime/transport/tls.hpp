#pragma once
// TLS: between nodes on several hosts (1.3, with mutual authentication, over non-blocking
// connections), for clients of the HTTP and of the cache server, and as such a client.

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

/// PEM files.
struct TlsFiles {
  std::string certificate;  ///< followed by intermediate ones, if any
  std::string key;
  std::string ca;
};

/// What an HTTP server asks of its clients.
struct TlsServerPolicy {
  enum class ClientCertificate : std::uint8_t { kNone, kOptional, kRequired };
  ClientCertificate client_certificate = ClientCertificate::kNone;
  std::string ciphers;  ///< up to TLS 1.2, as OpenSSL writes them; empty: its default
};

/// Certificate, key and authority of this host, for any number of sessions. Thread-safe.
class TlsContext {
 public:
  /// For nodes: every certificate of the authority is accepted, under any name, so use an authority
  /// for this system alone. Errors name the file: not readable, the key does not match the
  /// certificate, the certificate is not signed by the authority, or is expired or not yet valid.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> load(const TlsFiles& files);

  /// For an HTTP server: TLS 1.2 or later, HTTP/1.1. `files.ca` signs the certificates of clients,
  /// if any are asked for. Errors name the option and its value.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> load_for_http(
      const TlsFiles& files, const TlsServerPolicy& policy);

  /// For a client of which no certificate is asked: TLS 1.2 or later. `ca`: PEM file with whom it
  /// trusts; empty: the system's authorities. Errors name it.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> load_for_client(
      const std::string& ca);

  [[nodiscard]] SSL_CTX* get() const noexcept { return context_.get(); }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context, &SSL_CTX_free) {}
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

/// Reloads changed files: new connections use a renewed certificate, and existing ones continue.
/// Thread-safe.
class TlsSource {
 public:
  using Load = std::function<Result<std::shared_ptr<const TlsContext>>(const TlsFiles&)>;

  /// Errors: of `load`.
  [[nodiscard]] static Result<std::shared_ptr<TlsSource>> open(const TlsFiles& files,
                                                               Load load = TlsContext::load);

  /// The context of the current files; if they have changed and are invalid, the previous context,
  /// which is logged once.
  [[nodiscard]] std::shared_ptr<const TlsContext> context();

 private:
  /// Detects a changed file.
  struct Stamp {
    std::uint64_t inode = 0;
    std::int64_t size = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;

  TlsSource(TlsFiles files, Load load, std::shared_ptr<const TlsContext> context,
            const Stamps& stamps)
      : files_(std::move(files)),
        load_(std::move(load)),
        context_(std::move(context)),
        stamps_(stamps) {}
  static Stamps stamps_of(const TlsFiles& files);

  const TlsFiles files_;
  const Load load_;
  std::mutex mutex_;  // guards the two below
  std::shared_ptr<const TlsContext> context_;
  Stamps stamps_;
};

/// OpenSSL has an error queue per thread, and attributes leftover errors to the next session: every
/// operation here leaves it empty.
class TlsSession : public Session {
 public:
  TlsSession(std::shared_ptr<const TlsContext> context, int socket, Side side);
  /// The side that connects. `host`: the name or address that the other's certificate must have.
  TlsSession(std::shared_ptr<const TlsContext> context, int socket, const std::string& host);

  std::optional<std::size_t> read(std::span<char> into) override;
  std::optional<std::size_t> write(std::span<const char> from) override;

 private:
  /// False: the connection has ended.
  bool shake_hands();
  bool send_early();
  /// Handles an operation that returned `result`; false: the connection has ended.
  bool take_result(int result);

  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

}  // namespace troupe
