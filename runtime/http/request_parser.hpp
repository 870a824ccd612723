#pragma once
// HTTP/1 request parser (RFC 9112).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/http/chunked_body.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

struct HttpLimits {
  std::uint64_t max_body_bytes = 32 << 20;
  std::uint64_t max_upload_bytes = 0;  ///< of a file of POST /v1/files; 0: as every body
  std::uint32_t max_header_bytes = 64 << 10;
  double body_timeout_s = 60;  ///< plus one second for each kBodyBytesPerSecond received
  static constexpr double kBodyBytesPerSecond = 16 << 10;
};

/// One request. The owner feeds received bytes, inspects the head when it is complete, and
/// continues feeding until the request is complete or rejected.
///
/// The length of a request is never ambiguous: anything that a proxy in front of the server could
/// parse differently is rejected (two lengths, a length with a transfer coding, any transfer coding
/// other than "chunked", folded lines, spaces before a colon, lines that do not end with CR LF),
/// and no further bytes of the connection are parsed.
class RequestParser {
 public:
  enum class State : std::uint8_t {
    kHead,      ///< the head is incomplete
    kHeadDone,  ///< head() is available; feeding stops here once
    kBody,      ///< the body is incomplete
    kDone,      ///< take() returns the request
    kRefused    ///< with status() and problem(); the connection cannot be used any more
  };

  explicit RequestParser(const HttpLimits& limits) : limits_(limits) {}

  /// Parses bytes and returns how many were consumed. The rest must be passed again, followed by
  /// new bytes. Pre: state() is kHead, kHeadDone or kBody.
  [[nodiscard]] std::size_t feed(std::string_view bytes);
  [[nodiscard]] State state() const noexcept { return state_; }
  /// Pre: kRefused.
  [[nodiscard]] int status() const noexcept { return status_; }
  /// The error for the client. Pre: kRefused.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// Whether a head is incomplete.
  [[nodiscard]] bool in_head() const noexcept {
    return state_ == State::kHead && (has_request_line_ || !line_.empty());
  }
  /// The request without its body, as far as it has been parsed.
  [[nodiscard]] const HttpRequest& head() const noexcept { return request_; }
  [[nodiscard]] std::uint64_t num_body_bytes() const noexcept {
    return num_read_bytes_ + request_.body.size();
  }
  /// From now on the body goes there instead of into HttpRequest::body. Pre: kHeadDone.
  void divert_body(std::shared_ptr<BodyReader> reader) { request_.reader = std::move(reader); }
  /// Pre: kDone.
  [[nodiscard]] HttpRequest take();
  /// Whether the client wants to keep the connection. Pre: the head has been parsed.
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }
  [[nodiscard]] bool is_http_1_0() const noexcept { return is_http_1_0_; }
  /// Whether the client waits for "100 Continue". Pre: the head has been parsed.
  [[nodiscard]] bool expects_continue() const noexcept;

 private:
  [[nodiscard]] std::size_t read_head(std::string_view bytes);
  void take_line();
  void take_request_line();
  void take_field();
  void finish_head();
  void take_framing();
  void take_content_length(std::string_view text);
  void take_host();
  [[nodiscard]] std::size_t read_body(std::string_view bytes);
  [[nodiscard]] std::size_t collect_body(std::string_view bytes);
  [[nodiscard]] std::uint64_t max_body_bytes() const noexcept;
  [[nodiscard]] std::string limit_text() const;
  [[nodiscard]] bool connection_has(std::string_view option) const;
  void refuse(int status, std::string problem);
  void malformed(std::string_view what);

  HttpLimits limits_;
  State state_ = State::kHead;
  HttpRequest request_;
  std::string line_;  ///< current line of the head, possibly incomplete
  std::uint64_t num_head_bytes_ = 0;
  bool has_request_line_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  std::uint64_t content_left_ = 0;      ///< for a body with Content-Length
  std::uint64_t num_read_bytes_ = 0;    ///< that a BodyReader has taken
  std::optional<ChunkedBody> chunked_;  ///< for a chunked body
  int status_ = 0;
  std::string problem_;
};

}  // namespace troupe
