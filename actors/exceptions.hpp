#pragma once
// What is thrown through an actor ends it. Why is said in a sentence: "std::bad_alloc" tells nobody
// what to do.

#include <exception>
#include <string>
#include <system_error>

#include "messages/caf_compat.hpp"

namespace troupe {

/// In words.
[[nodiscard]] inline std::string describe(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& error) {
    // Hardly anything but the start of a thread ends here: it needs memory for its stack.
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
