#pragma once
// Who may use the API.

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

/// Reads the keys anew.
using ReadApiKeys = std::function<Result<std::vector<std::string>>()>;

/// The keys in a file, one in each line; empty lines and those that begin with # are none. Errors:
/// of read_file; it has none.
[[nodiscard]] Result<std::vector<std::string>> read_api_key_file(const std::string& file);

/// Owns digests of the accepted keys, never the keys. Thread-safe.
class ApiKeys {
 public:
  /// No keys: everyone is let in. `read`, if there is one, is asked again after a reload (see
  /// reload_count). If that fails, the keys stay what they are; so they do if none is left, which
  /// would let everyone in.
  explicit ApiKeys(const std::vector<std::string>& keys, ReadApiKeys read = nullptr);

  /// `authorization`: the header's value, "Bearer <key>" (the scheme in any case). Takes the same
  /// time whichever key matches, if any.
  [[nodiscard]] bool allow(std::string_view authorization) const {
    return find(authorization).has_value() || !restricted_;
  }
  /// A number for whoever has this key: 1 and up in the order of the keys, the same for as long as
  /// this lives, and never another key's; 0 for a key that is not known, or if there are none.
  [[nodiscard]] std::uint32_t tenant(std::string_view authorization) const {
    return find(authorization).value_or(0);
  }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    Digest digest;
    bool accepted = false;  // else it was once
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
