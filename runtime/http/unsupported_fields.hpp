#pragma once
// Fields of OpenAI, vLLM and older APIs that would change the result and are not implemented: they
// are rejected rather than silently ignored.

#include "runtime/http/json_fields.hpp"

namespace troupe {

/// Records the first unsupported field, with kUnsupported and its name. Values without effect
/// (false, none, an empty list ...) are accepted.
void refuse_unsupported_fields(const JsonFields& fields);

/// kUnsupported: `what` of the field `name` is not supported.
[[nodiscard]] Error unsupported(std::string_view name, std::string_view what);

}  // namespace troupe
