#pragma once
// Isolates failures: an exception in the work for one request must not end the actor that serves
// all of them.

#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "messages/error.hpp"
#include "runtime/base/log.hpp"

namespace troupe {

/// Calls f(), the work for one request. An exception becomes the error of this request, worded for
/// its client. f must leave no partial state behind.
template <class Function>
[[nodiscard]] std::optional<Error> guard(Function&& f) {
  const auto no_memory = [] {
    return Error{ErrorCode::kUnavailable, "the server is out of memory for this request", ""};
  };
  try {
    std::forward<Function>(f)();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::length_error&) {
    return no_memory();
  } catch (const std::exception& failure) {
    log_error("request failed with an exception", kv("what", failure.what()));
  } catch (...) {
    log_error("request failed with an exception");
  }
  return Error{ErrorCode::kInternal, "internal error while processing the request", ""};
}

}  // namespace troupe
