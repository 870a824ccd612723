#pragma once
// Who may use the API.

#include <array>
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
  [[nodiscard]] bool allow(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);

  std::vector<Digest> digests_;
};

}  // namespace troupe
