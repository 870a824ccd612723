#pragma once
// HTTP/1 requests out of a stream of bytes (Boost.Beast's parser).

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/http/service.hpp"

namespace troupe {

struct HttpLimits {
  std::uint64_t max_body_bytes = 32 << 20;
  std::uint32_t max_header_bytes = 64 << 10;
};

/// One request. The owner feeds it what it has received, looks at the head when that is there, and
/// goes on feeding until the request is whole or wrong.
class RequestParser {
 public:
  enum class State : std::uint8_t {
    kHead,       ///< more of the head is needed
    kHeadDone,   ///< head() is there; feeding stops here once
    kBody,       ///< more of the body is needed
    kDone,       ///< take() gives the request
    kMalformed,  ///< 400
    kHeadTooLarge,
    kBodyTooLarge
  };

  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  /// Reads on; returns how many bytes were used up. The rest must come again, with more behind it.
  /// Pre: state() is kHead, kHeadDone or kBody.
  [[nodiscard]] std::size_t feed(std::string_view bytes);
  [[nodiscard]] State state() const noexcept;
  /// What is wrong, for the client.
  [[nodiscard]] std::string_view problem() const noexcept;

  /// Without the body. Pre: the head has been read.
  [[nodiscard]] const HttpRequest& head() const noexcept;
  /// Pre: kDone.
  [[nodiscard]] HttpRequest take();
  /// Whether the client wants the connection kept. Pre: the head has been read.
  [[nodiscard]] bool keep_alive() const noexcept;
  [[nodiscard]] bool is_http_1_0() const noexcept;
  /// Whether the client waits for "100 Continue". Pre: the head has been read.
  [[nodiscard]] bool expects_continue() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
