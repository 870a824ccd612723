#pragma once
// TLS 1.3 with certificates on both sides, over connections that do not block: what nodes on
// several hosts speak. Whoever has a certificate of the authority is let in, under any name: it is
// to be one for this system alone.

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
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
  std::string certificate;  ///< with intermediate ones behind it, if there are any
  std::string key;
  std::string ca;
};

/// Certificate, key and authority of this host; any number of sessions, in any thread.
class TlsContext {
 public:
  /// Errors name the file: it cannot be read, the key is not the certificate's, the certificate is
  /// not the authority's, or its time is over or has not come.
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> load(const TlsFiles& files);

  [[nodiscard]] SSL_CTX* get() const noexcept { return context_.get(); }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context, &SSL_CTX_free) {}
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

/// The latest of what the files hold: a certificate that has been renewed is shown by the next
/// connection, and those that exist go on. Thread-safe.
class TlsSource {
 public:
  /// Errors: of TlsContext::load.
  [[nodiscard]] static Result<std::shared_ptr<TlsSource>> open(const TlsFiles& files);

  /// Of files that have changed and cannot be used, what they were before; the log says so once.
  [[nodiscard]] std::shared_ptr<const TlsContext> context();

 private:
  /// Tells whether a file is another one than before.
  struct Stamp {
    std::uint64_t inode = 0;
    std::int64_t size = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;

  TlsSource(TlsFiles files, std::shared_ptr<const TlsContext> context, const Stamps& stamps)
      : files_(std::move(files)), context_(std::move(context)), stamps_(stamps) {}
  static Stamps stamps_of(const TlsFiles& files);

  const TlsFiles files_;
  std::mutex mutex_;  // guards the two below
  std::shared_ptr<const TlsContext> context_;
  Stamps stamps_;
};

/// OpenSSL keeps a queue of errors for each thread, and takes what another session has left there
/// for its own: every operation here leaves it empty.
class TlsSession : public Session {
 public:
  TlsSession(std::shared_ptr<const TlsContext> context, int socket, Side side);

  std::optional<std::size_t> read(std::span<char> into) override;
  std::optional<std::size_t> write(std::span<const char> from) override;

 private:
  /// False: over.
  bool shake_hands();
  bool send_early();
  /// What became of an operation that returned `result`; false: over.
  bool take_result(int result);

  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

}  // namespace troupe
