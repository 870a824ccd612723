#pragma once
// The names that a server may be called by.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/options.hpp"

namespace troupe {

/// Checks the Host of requests. A page of a name whose owner lets it point to this server's address
/// (DNS rebinding) is to the browser of the same origin as the server; only its Host tells.
class AllowedHosts {
 public:
  /// Any.
  AllowedHosts() = default;
  /// What --allowed-hosts says; without it and without keys, what cannot be the name of somebody
  /// else's page: on loopback the names and addresses of this host, elsewhere all addresses, this
  /// host's name, and names that no public DNS has.
  explicit AllowedHosts(const ServerOptions& options);

  /// `host`: the field's value, "name:port". One that is empty comes from no browser.
  [[nodiscard]] bool allow(std::string_view host) const;

 private:
  enum class Addresses : std::uint8_t { kListed, kLoopback, kAll };

  bool any_ = true;
  std::vector<std::string> names_;  ///< in small letters; "*.name": all below it
  Addresses addresses_ = Addresses::kListed;
  bool without_dot_ = false;
};

}  // namespace troupe
