#include "runtime/http/allowed_hosts.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runtime/base/ascii.hpp"

namespace troupe {
namespace {

constexpr std::string_view kPrivateDomains[] = {"*.localhost", "*.local", "*.internal", "*.svc",
                                                "*.home.arpa"};

bool is_address(const std::string& name) {
  std::array<unsigned char, 16> bytes{};
  return inet_pton(AF_INET, name.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1;
}

/// "[::1]:80" -> "::1", "Name.:80" -> "name"
std::string name_of(std::string_view host) {
  if (is_address(std::string(host))) return lower_ascii(host);
  if (host.starts_with('[')) return lower_ascii(host.substr(1, host.find(']') - 1));
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower_ascii(host);
}

std::string own_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return lower_ascii(name.data());
}

}  // namespace

AllowedHosts::AllowedHosts(const ServerOptions& options) {
  if (!options.allowed_hosts.empty()) {
    for (const std::string& name : options.allowed_hosts) {
      names_.push_back(name.starts_with('*') ? lower_ascii(name) : name_of(name));
    }
    any_ = std::find(names_.begin(), names_.end(), "*") != names_.end();
    return;
  }
  if (!options.api_key.empty() || !options.api_key_file.empty()) return;
  any_ = false;
  without_dot_ = true;
  names_.push_back(lower_ascii(options.host));
  if (is_loopback(options.host)) {
    addresses_ = Addresses::kLoopback;
    names_.emplace_back(kPrivateDomains[0]);
  } else {
    addresses_ = Addresses::kAll;
    names_.insert(names_.end(), std::begin(kPrivateDomains), std::end(kPrivateDomains));
    if (std::string name = own_name(); !name.empty()) names_.push_back(std::move(name));
  }
}

bool AllowedHosts::allow(std::string_view host) const {
  if (any_ || host.empty()) return true;
  const std::string name = name_of(host);
  const bool listed = std::any_of(names_.begin(), names_.end(), [&](const std::string& known) {
    return known.starts_with("*.")
               ? name.size() > known.size() - 1 && name.ends_with(std::string_view(known).substr(1))
               : name == known;
  });
  if (listed) return true;
  if (is_address(name)) {
    return addresses_ == Addresses::kAll ||
           (addresses_ == Addresses::kLoopback && is_loopback(name));
  }
  return without_dot_ && name.find('.') == std::string::npos;
}

}  // namespace troupe
