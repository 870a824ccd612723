#pragma once
// What goes wrong with one request must not end who serves all of them.

#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "messages/error.hpp"
#include "runtime/base/log.hpp"

namespace troupe {

/// Calls f(), whose work is for one request. What it throws becomes the error that fails this
/// request, in words for its client; f leaves nothing behind that another one would stumble over.
template <class Function>
[[nodiscard]] std::optional<Error> guard(Function&& f) {
  const auto no_memory = [] {
    return Error{ErrorCode::kUnavailable, "the server has not enough memory for this request", ""};
  };
  try {
    std::forward<Function>(f)();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::length_error&) {
    return no_memory();
  } catch (const std::exception& failure) {
    log_error("exception at a request", kv("what", failure.what()));
  } catch (...) {
    log_error("exception at a request");
  }
  return Error{ErrorCode::kInternal, "the server failed at this request", ""};
}

}  // namespace troupe
