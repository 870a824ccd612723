#pragma once
// Python's bytes, the result of str.encode.

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// text.encode(encoding, errors): utf-8, ascii and latin-1. Fails where Python does.
[[nodiscard]] Value encode(std::string_view text, std::string_view encoding,
                           std::string_view errors, Runtime& runtime);

}  // namespace troupe::jinja
