#pragma once
// Fields of OpenAI's, vLLM's and earlier APIs that would change the answer and that no component
// implements: a client is told so, rather than answered as if it had not asked.

#include "runtime/http/json_fields.hpp"

namespace troupe {

/// Notes the first field that is not offered, with kUnsupported and its name. Values that ask for
/// what is done anyway (false, none, an empty list ...) are taken.
void refuse_unsupported_fields(const JsonFields& fields);

/// kUnsupported: `what` of the field `name` is not offered.
[[nodiscard]] Error unsupported(std::string_view name, std::string_view what);

}  // namespace troupe
