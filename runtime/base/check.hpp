#pragma once
// CHECK: invariants of this program. A failure throws CheckFailure, which fails the step or the
// actor; the supervisor recovers.
// Enabled in every build.

#include <sstream>
#include <stdexcept>
#include <string>

namespace troupe {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace internal {
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& values);

template <class... Values>
[[noreturn]] void check_failed_with(const char* expression, const char* file, int line,
                                    const Values&... values) {
  std::ostringstream text;
  ((text << ' ' << values), ...);
  check_failed(expression, file, line, text.str());
}
}  // namespace internal
}  // namespace troupe

/// CHECK(condition, value...): the values are printed with the failure.
#define CHECK(condition, ...)                                            \
  (static_cast<bool>(condition) ? static_cast<void>(0)                   \
                                : ::troupe::internal::check_failed_with( \
                                      #condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__))
