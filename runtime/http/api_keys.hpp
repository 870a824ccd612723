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

/// Reloads the keys.
using ReadApiKeys = std::function<Result<std::vector<std::string>>()>;

/// The keys in a file, one per line; empty lines and lines that begin with # are ignored. Errors:
/// of read_file; no key in the file.
[[nodiscard]] Result<std::vector<std::string>> read_api_key_file(const std::string& file);

/// Owns digests of the accepted keys, not the keys. Thread-safe.
class ApiKeys {
 public:
  /// Without keys all requests are accepted. `read`, if given, is called after a reload (see
  /// reload_count). If it fails or returns no key, which would accept everybody, the old keys stay
  /// valid.
  explicit ApiKeys(const std::vector<std::string>& keys, ReadApiKeys read = nullptr);

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

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    Digest digest;
    bool accepted = false;  // false: it was removed by a reload
  };

  static Digest digest(std::string_view key);
  void accept(const std::vector<std::string>& keys) const;
  void reload() const;
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view authorization) const;

  mutable std::atomic<bool> restricted_;
  const ReadApiKeys read_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<Key> keys_;
  mutable std::uint64_t reload_count_;
};

}  // namespace troupe
