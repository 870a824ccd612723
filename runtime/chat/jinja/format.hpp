#pragma once
// Python's two ways to format: "%s" % values, and "{}".format(values).

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// format % values.
[[nodiscard]] Value printf_format(const Value& format, const Value& values, Runtime& runtime);
/// format.format(...); fields reach into values under the sandbox's rules.
[[nodiscard]] Value brace_format(const Value& format, const Arguments& arguments, Runtime& runtime);

}  // namespace troupe::jinja
