#pragma once
// An HTTP client for OpenAI servers, for one request or a load of them. It uses no proxy; for
// https, SSL_CERT_FILE names certificate authorities other than those of the system.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"
#include "tools/bench/report.hpp"

namespace troupe::tools {

struct ServerAddress {
  std::string host;
  std::string port;
  std::string path;  ///< prefix of every endpoint, without a trailing slash
  bool uses_tls = false;
  bool operator==(const ServerAddress&) const = default;

  /// "host:port" as in URLs and the Host header: an IPv6 address is in brackets.
  [[nodiscard]] std::string authority() const;
  /// "http://host:port/path", or https.
  [[nodiscard]] std::string url() const {
    return (uses_tls ? "https://" : "http://") + authority() + path;
  }
};
/// Reads "http://host:port/path", or https. Errors: kInvalidArgument.
[[nodiscard]] Result<ServerAddress> parse_url(std::string_view url);

/// Headers besides those of the protocol.
using ClientHeaders = std::vector<std::pair<std::string, std::string>>;

/// The body of a GET. Errors: kUnavailable without a response within `timeout_s`, kIo for a status
/// other than 200.
[[nodiscard]] Result<std::string> http_get(const ServerAddress& server, const std::string& path,
                                           const ClientHeaders& headers, double timeout_s);

struct PostResult {
  unsigned status = 0;
  std::string error_body;  ///< of a status other than 200
};
/// A POST of JSON. `on_bytes` gets the body of a 200 as it arrives. Closes the connection early
/// when `interrupt_descriptor` (-1: none) becomes readable: the result is what was received, with
/// status 200. Errors: kUnavailable if there is no response, or the connection breaks.
[[nodiscard]] Result<PostResult> http_post(const ServerAddress& server, const std::string& path,
                                           const ClientHeaders& headers, const std::string& body,
                                           const std::function<void(std::string_view)>& on_bytes,
                                           int interrupt_descriptor);

/// Streaming requests, and when to send them.
struct Load {
  ServerAddress server;
  std::string path;  ///< "/v1/completions"
  ClientHeaders headers;
  std::vector<std::string> bodies;              ///< JSON, each with "stream": true
  std::vector<double> send_times;               ///< seconds from the start, ascending; parallel
  std::optional<std::int64_t> max_concurrency;  ///< further requests wait for a free slot
  double timeout_s = 6 * 3600;                  ///< per request
  std::function<void(std::int64_t num_done)> on_progress;  ///< may be empty
};

struct LoadResult {
  std::vector<RequestRecord> records;  ///< parallel to the bodies
  double duration = 0;                 ///< seconds, from the start to the last response
};
/// Sends all requests from the calling thread, each on its own connection. Errors of requests are
/// in their records.
[[nodiscard]] LoadResult run_load(const Load& load);

}  // namespace troupe::tools
