#pragma once
// Clients of the stores that a remote_url of LMCache names.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"

namespace troupe::lmcache {

struct RemoteOptions {
  std::string url;
  std::chrono::milliseconds timeout{10'000};  ///< of each call
  std::int64_t ttl_s = 0;                     ///< of what is put into Redis; 0: for good
  std::string token_file;                     ///< lm, lms: of Troupe's cache server
  std::string ca_file;          ///< lms: the authority of its certificate; empty: the system's
  std::size_t value_bytes = 0;  ///< mp: the most that a value has
};

/// One connection, opened on demand, and again kReconnectInterval after a failure; used by one
/// thread. No call takes longer than the timeout, unless the connection keeps transferring
/// bytes.
class RemoteStore {
 public:
  static constexpr std::chrono::seconds kReconnectInterval{10};

  virtual ~RemoteStore() = default;
  /// How many of the keys are there before the first that is not. Errors, also of the others:
  /// kUnavailable, kTimeout, kIo, kCorrupt; they name the URL without its password.
  [[nodiscard]] virtual Result<std::size_t> count_leading(std::span<const std::string> keys) = 0;
  /// nullopt: it is not there. kTooLarge: it has another size than num_bytes.
  [[nodiscard]] virtual Result<std::optional<std::vector<std::byte>>> get(
      const std::string& key, std::size_t num_bytes) = 0;
  virtual Result<void> put(const std::string& key, const TensorInfo& info,
                           std::span<const std::byte> bytes) = 0;
};

/// Errors: kInvalidArgument, the URL or an option; kUnsupported, its scheme (names those that there
/// are).
[[nodiscard]] Result<std::unique_ptr<RemoteStore>> make_remote_store(const RemoteOptions& options);

/// "scheme://[user:password@]host:port[/path]".
struct RemoteUrl {
  std::string scheme;
  std::string user;
  std::string password;
  std::string host;
  std::uint16_t port = 0;  ///< 0: none is given
  std::string path;        ///< with its '/'

  [[nodiscard]] std::string shown() const;
};
/// Errors: kInvalidArgument.
[[nodiscard]] Result<RemoteUrl> parse_remote_url(const std::string& url);

// ---- of each scheme -----------------------------------------------------------------------------

[[nodiscard]] Result<std::unique_ptr<RemoteStore>> make_lm_store(const RemoteUrl& url,
                                                                 const RemoteOptions& options);
/// redis, resp, unix.
[[nodiscard]] Result<std::unique_ptr<RemoteStore>> make_redis_store(const RemoteUrl& url,
                                                                    const RemoteOptions& options);
[[nodiscard]] Result<std::unique_ptr<RemoteStore>> make_folder_store(const RemoteUrl& url);
/// mp: `lmcache server` on this host, whose shared memory values are copied to and from.
[[nodiscard]] Result<std::unique_ptr<RemoteStore>> make_mp_store(const RemoteUrl& url,
                                                                 const RemoteOptions& options);

}  // namespace troupe::lmcache
