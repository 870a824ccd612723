#pragma once
// The accepted values of the Host header.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/options.hpp"

namespace troupe {

/// Validates the Host header, against DNS rebinding: a name that an attacker points to this
/// server's address makes the attacker's page same-origin with the server; only the Host header
/// reveals it.
class AllowedHosts {
 public:
  /// Accepts any host.
  AllowedHosts() = default;
  /// Accepts --allowed-hosts; without it and without API keys, names that cannot be an attacker's:
  /// on loopback the names and addresses of this host, elsewhere IP addresses, this host's name,
  /// and names that no public DNS has.
  explicit AllowedHosts(const ServerOptions& options);

  /// `host`: the header's value, "name:port". An empty one does not come from a browser.
  [[nodiscard]] bool allow(std::string_view host) const;

 private:
  enum class Addresses : std::uint8_t { kListed, kLoopback, kAll };

  bool any_ = true;
  std::vector<std::string> names_;  ///< lower case; "*.name": all subdomains
  Addresses addresses_ = Addresses::kListed;
  bool without_dot_ = false;
};

}  // namespace troupe
