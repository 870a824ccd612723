#pragma once
// HTTP/1 requests out of a stream of bytes (RFC 9112).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/http/chunked_body.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

struct HttpLimits {
  std::uint64_t max_body_bytes = 32 << 20;
  std::uint32_t max_header_bytes = 64 << 10;
  double body_timeout_s = 60;  ///< and a second more for each kBodyBytesPerSecond that have come
  static constexpr double kBodyBytesPerSecond = 16 << 10;
};

/// One request. The owner feeds it what it has received, looks at the head when that is there, and
/// goes on feeding until the request is whole or refused.
///
/// Where a request ends is never guessed: whatever a proxy in front of the server could read in
/// another way is refused (two lengths, a length beside a transfer coding, any transfer coding but
/// "chunked", folded lines, spaces before a colon, lines that do not end with CR LF), and nothing
/// that follows on the connection is read.
class RequestParser {
 public:
  enum class State : std::uint8_t {
    kHead,      ///< more of the head is needed
    kHeadDone,  ///< head() is there; feeding stops here once
    kBody,      ///< more of the body is needed
    kDone,      ///< take() gives the request
    kRefused    ///< with status() and problem(); the connection is of no further use
  };

  explicit RequestParser(const HttpLimits& limits) : limits_(limits) {}

  /// Reads on; returns how many bytes were used up. The rest must come again, with more behind it.
  /// Pre: state() is kHead, kHeadDone or kBody.
  [[nodiscard]] std::size_t feed(std::string_view bytes);
  [[nodiscard]] State state() const noexcept { return state_; }
  /// Pre: kRefused.
  [[nodiscard]] int status() const noexcept { return status_; }
  /// What is wrong, for the client. Pre: kRefused.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// A part of a head is there, and more is needed.
  [[nodiscard]] bool in_head() const noexcept {
    return state_ == State::kHead && (has_request_line_ || !line_.empty());
  }
  /// Without the body; as much of it as has been read.
  [[nodiscard]] const HttpRequest& head() const noexcept { return request_; }
  [[nodiscard]] std::uint64_t num_body_bytes() const noexcept { return request_.body.size(); }
  /// Pre: kDone.
  [[nodiscard]] HttpRequest take();
  /// Whether the client wants the connection kept. Pre: the head has been read.
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }
  [[nodiscard]] bool is_http_1_0() const noexcept { return is_http_1_0_; }
  /// Whether the client waits for "100 Continue". Pre: the head has been read.
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
  [[nodiscard]] bool connection_has(std::string_view option) const;
  void refuse(int status, std::string problem);
  void malformed(std::string_view what);

  HttpLimits limits_;
  State state_ = State::kHead;
  HttpRequest request_;
  std::string line_;  ///< of the head, as far as it has come
  std::uint64_t num_head_bytes_ = 0;
  bool has_request_line_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  std::uint64_t content_left_ = 0;      ///< of a body with Content-Length
  std::optional<ChunkedBody> chunked_;  ///< of one without
  int status_ = 0;
  std::string problem_;
};

}  // namespace troupe
