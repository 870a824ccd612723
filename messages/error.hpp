#pragma once
// The one catalogue of errors. A code says whose fault it is and what a client may do; the text
// names value and limit.

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
  kUnprocessable,    ///< the request is well formed but its media cannot be used: 422
  kOverloaded,       ///< queue full or draining, try again later: 503
  kUnavailable,      ///< a component is down or not ready: 503
  kTimeout,          ///< a deadline has passed: 504
  kAborted,          ///< ended by the client or by shutdown
  kUnsupported,      ///< valid, but not offered here: 400
  kCorrupt,          ///< a file or a message is malformed
  kIo,               ///< the operating system said no
  kInternal,         ///< we are wrong: 500
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param;  ///< the request's field at fault, empty if none
  bool operator==(const Error&) const = default;
};
TROUPE_MESSAGE(Error, code, message, param)

}  // namespace troupe
