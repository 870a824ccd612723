#pragma once
// An uncaught exception ends its actor. The reason is reported in a sentence, since
// "std::bad_alloc" does not help the user.

#include <exception>
#include <string>
#include <system_error>

#include "messages/caf_compat.hpp"

namespace troupe {

/// The exception as text.
[[nodiscard]] inline std::string describe(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& error) {
    // Almost always the start of a thread, which needs memory for its stack.
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return std::string(
                 "no thread can be started (limits of memory or of threads: ulimit -v, "
                 "ulimit -u, the cgroup): ") +
             error.what();
    }
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown kind";
  }
}

}  // namespace troupe
