#pragma once
// API keys and the tenants that they identify.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// What the requests of a key may take together; 0: no limit.
struct KeyLimits {
  std::int64_t requests_per_minute = 0;
  std::int64_t tokens_per_minute = 0;  ///< of prompts and outputs
  std::int64_t max_concurrent_requests = 0;
  bool operator==(const KeyLimits&) const = default;
};

struct ApiKey {
  std::string key;
  std::string name;  ///< in the log; empty: its number
  KeyLimits limits;
};

/// Reloads the keys.
using ReadApiKeys = std::function<Result<std::vector<ApiKey>>()>;

/// The keys in a file, one per line: KEY [name=NAME] [requests-per-minute=N] [tokens-per-minute=N]
/// [max-concurrent-requests=N]. Empty lines and lines that begin with # are ignored. Errors: of
/// read_file; no key in the file, an unknown setting or value, with its line.
[[nodiscard]] Result<std::vector<ApiKey>> read_api_key_file(const std::string& file);

/// A refused request: the limit and, in seconds, when it admits one again.
struct RateLimited {
  Error error;
  std::int64_t retry_after_s = 1;
};

/// Owns digests of the accepted keys, not the keys. Thread-safe.
class ApiKeys {
 public:
  /// Without keys all requests are accepted. `read`, if given, is called after a reload (see
  /// reload_count). If it fails or returns no key, which would accept everybody, the old keys stay
  /// valid.
  explicit ApiKeys(const std::vector<ApiKey>& keys, ReadApiKeys read = nullptr);

  /// `authorization`: the header's value, "Bearer <key>" (scheme in any case). Constant time over
  /// all keys.
  [[nodiscard]] bool allow(std::string_view authorization) const {
    return find(authorization).has_value() || !restricted_;
  }
  /// The number of the key's tenant: 1 and up in the order of the keys, stable for the lifetime of
  /// this object and never reused; 0 for an unknown key, or if there are none.
  [[nodiscard]] std::uint32_t tenant(std::string_view authorization) const {
    return find(authorization).value_or(0);
  }
  /// Identifies the key in `authorization`, accepted or not, without revealing it: SHA-256 as hex
  /// digits. Empty: there is none.
  [[nodiscard]] static std::string key_id(std::string_view authorization);
  /// allow() and tenant() for a key_id.
  [[nodiscard]] bool allow_id(std::string_view key_id) const {
    return find_id(key_id).has_value() || !restricted_;
  }
  [[nodiscard]] std::uint32_t tenant_of_id(std::string_view key_id) const {
    return find_id(key_id).value_or(0);
  }

  /// The tenant's name for the log.
  [[nodiscard]] std::string name(std::uint32_t tenant) const;

  /// Counts a request of the tenant, until end_request. Nullopt: it is within the key's limits;
  /// otherwise it is not counted. `now`: seconds, monotonic. The limits of a minute are those of a
  /// bucket that is filled at a constant rate, up to what a minute brings.
  [[nodiscard]] std::optional<RateLimited> begin_request(std::uint32_t tenant, double now) const;
  void end_request(std::uint32_t tenant) const;
  /// Counts tokens of a request that has begun; those over the limit delay later requests.
  void spend_tokens(std::uint32_t tenant, std::int64_t num_tokens, double now) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  /// Filled at a constant rate.
  struct Bucket {
    double level = 0;
    double filled_at = 0;  // 0: never used, and full

    void fill(std::int64_t per_minute, double now);
  };
  struct Key {
    Digest digest;
    bool accepted = false;  // false: it was removed by a reload
    std::string name;
    KeyLimits limits;
    Bucket requests, tokens;
    std::int64_t num_running = 0;
  };

  static Digest digest(std::string_view key);
  void accept(const std::vector<ApiKey>& keys) const;
  void reload() const;
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view authorization) const;
  [[nodiscard]] std::optional<std::uint32_t> find_id(std::string_view key_id) const;

  mutable std::atomic<bool> restricted_;
  const ReadApiKeys read_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<Key> keys_;
  mutable std::uint64_t reload_count_;
};

}  // namespace troupe
