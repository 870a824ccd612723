#pragma once
// Python's two kinds of formatting: "%s" % values, and "{}".format(values).

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// format % values.
[[nodiscard]] Value printf_format(const Value& format, const Value& values, Runtime& runtime);
/// format.format(...); field access follows the sandbox's rules.
[[nodiscard]] Value brace_format(const Value& format, const Arguments& arguments, Runtime& runtime);

}  // namespace troupe::jinja
