#pragma once
// An HTTP client that puts load on an OpenAI server.

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
  std::string path;  ///< before every endpoint, without a slash at its end
  bool operator==(const ServerAddress&) const = default;

  /// "host:port" as URLs and the Host header have it: an IPv6 address stands in brackets.
  [[nodiscard]] std::string authority() const;
  /// "http://host:port/path".
  [[nodiscard]] std::string url() const { return "http://" + authority() + path; }
};
/// Reads "http://host:port/path". Errors: kInvalidArgument; kUnsupported for https.
[[nodiscard]] Result<ServerAddress> parse_url(std::string_view url);

/// Headers beside those of the protocol.
using ClientHeaders = std::vector<std::pair<std::string, std::string>>;

/// The body of a GET. Errors: kUnavailable if nobody answers within `timeout_s`, kIo for another
/// status than 200.
[[nodiscard]] Result<std::string> http_get(const ServerAddress& server, const std::string& path,
                                           const ClientHeaders& headers, double timeout_s);

struct PostResult {
  unsigned status = 0;
  std::string error_body;  ///< of another status than 200
};
/// A POST of JSON. `on_bytes` gets the body of a 200 as it arrives. Closes the connection early
/// when `interrupt_descriptor` becomes readable: what has come until then is the result, and the
/// status 200. Errors: kUnavailable if nobody answers, or the connection breaks.
[[nodiscard]] Result<PostResult> http_post(const ServerAddress& server, const std::string& path,
                                           const ClientHeaders& headers, std::string body,
                                           const std::function<void(std::string_view)>& on_bytes,
                                           int interrupt_descriptor);

/// Streaming requests, and when to send them.
struct Load {
  ServerAddress server;
  std::string path;  ///< "/v1/completions"
  ClientHeaders headers;
  std::vector<std::string> bodies;              ///< JSON, each with "stream": true
  std::vector<double> send_times;               ///< seconds from the start, ascending; parallel
  std::optional<std::int64_t> max_concurrency;  ///< a request due later waits for a free place
  double timeout_s = 6 * 3600;                  ///< of one request
  std::function<void(std::int64_t num_done)> on_progress;  ///< may be empty
};

struct LoadResult {
  std::vector<RequestRecord> records;  ///< parallel to the bodies
  double duration = 0;                 ///< seconds, from the start to the last answer
};
/// Sends everything from the calling thread, each request on a connection of its own. What goes
/// wrong with a request is in its record.
[[nodiscard]] LoadResult run_load(const Load& load);

}  // namespace troupe::tools
