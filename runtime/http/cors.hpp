#pragma once
// Cross-origin resource sharing (the Fetch standard, section 3.3): which web pages may call the
// server from a browser. The answers are those of Starlette's CORSMiddleware, which vLLM uses.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"

namespace troupe {

struct HttpRequest;

struct CorsPolicy {
  std::vector<std::string> origins;  ///< "*" allows every one
  bool credentials = false;
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};

  /// From allowed-origins, allow-credentials, allowed-methods and allowed-headers, of which each
  /// value may be a JSON array, as for vLLM. Errors: kInvalidArgument naming option and value.
  [[nodiscard]] static Result<CorsPolicy> create(const ServerOptions& options);

  [[nodiscard]] bool allows_origin(std::string_view origin) const;

  /// Headers for every response to a request that is no preflight.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> response_headers(
      const HttpRequest& request) const;
  /// Headers of the response to a preflight, and what it asks for in vain: of "origin", "method"
  /// and "headers".
  struct Preflight {
    std::vector<std::pair<std::string, std::string>> headers;
    std::vector<std::string_view> disallowed;
  };
  [[nodiscard]] Preflight preflight(const HttpRequest& request) const;
};

/// OPTIONS with Origin and Access-Control-Request-Method: a browser asks before it sends.
[[nodiscard]] bool is_preflight(const HttpRequest& request) noexcept;

}  // namespace troupe
