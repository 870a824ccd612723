#pragma once
// Who may use the API.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Owns digests of the accepted keys, never the keys.
class ApiKeys {
 public:
  /// No keys: everyone is let in.
  explicit ApiKeys(const std::vector<std::string>& keys);

  /// `authorization`: the header's value, "Bearer <key>" (the scheme in any case). Takes the same
  /// time whichever key matches, if any.
  [[nodiscard]] bool allow(std::string_view authorization) const {
    return digests_.empty() || find(authorization).has_value();
  }
  /// A number for whoever has this key: 1 and up in the order of the keys; 0 for a key that is not
  /// known, or if there are none.
  [[nodiscard]] std::uint32_t tenant(std::string_view authorization) const {
    return find(authorization).value_or(0);
  }

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view authorization) const;

  std::vector<Digest> digests_;
};

}  // namespace troupe
