#pragma once
// The cache server: an LMCache remote store (lm://) with limits, a disk, tokens, TLS and metrics.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/cache_server/client_tokens.hpp"
#include "runtime/cache_server/value_store.hpp"
#include "runtime/transport/tls.hpp"

namespace troupe {

struct CacheServerConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 65432;  ///< 0: the system chooses
  std::string http_host = "127.0.0.1";
  std::int32_t http_port = -1;  ///< of /metrics and /health; -1: none, 0: the system chooses
  std::int32_t num_threads = 2;
  std::int32_t max_connections = 16384;
  double timeout_s = 60;  ///< to finish a request that has begun, and to read a reply
  std::string directory;  ///< empty: values are in memory only
  CacheStoreConfig store;
  ClientTokens tokens;
  std::shared_ptr<TlsSource> tls;  ///< of the lm:// port; null: plain
};

/// Owns the store, its folder and the threads that serve connections, each with some of them.
class CacheServer {
 public:
  /// Errors: kInvalidArgument (the host, the directory is in use), kIo (the port is in use).
  [[nodiscard]] static Result<std::unique_ptr<CacheServer>> start(CacheServerConfig config);
  /// Closes all connections; what waits is written to disk.
  ~CacheServer();
  CacheServer(const CacheServer&) = delete;
  CacheServer& operator=(const CacheServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] std::uint16_t http_port() const noexcept;
  [[nodiscard]] CacheStore& store() noexcept;

 private:
  class Impl;
  explicit CacheServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
