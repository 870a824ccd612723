#pragma once
// The error catalogue. A code says whether the client or the server is at fault and whether to
// retry; the text names value and limit.

#include <cstdint>
#include <string>

#include "messages/reflect.hpp"

namespace troupe {

enum class ErrorCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  ///< the request is wrong: HTTP 400
  kNotFound,         ///< no such model, file, route: 404
  kUnauthorized,     ///< 401
  kTooLarge,         ///< body, header or prompt over a limit of the server: 413
  kUnprocessable,    ///< the request is well formed but its media cannot be fetched: 400
  kOverloaded,       ///< queue full or draining, try again later: 503
  kUnavailable,      ///< a component is down or not ready: 503
  kTimeout,          ///< a deadline has passed: 504
  kAborted,          ///< ended by the client or by shutdown
  kUnsupported,      ///< valid, but not supported: 400
  kCorrupt,          ///< a file or a message is malformed
  kIo,               ///< the operating system reported an error
  kInternal,         ///< a bug in this program: 500
  kRateLimited,      ///< over a limit of the client's API key, try again later: 429
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param;  ///< the invalid field of the request, empty if none
  bool operator==(const Error&) const = default;
};
TROUPE_MESSAGE(Error, code, message, param)

}  // namespace troupe
