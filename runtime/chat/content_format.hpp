#pragma once

#include "runtime/chat/chat_template.hpp"
#include "runtime/chat/jinja/ast.hpp"

namespace troupe {

/// kOpenAi if some loop iterates over a message's content: x.content or x["content"], a variable
/// set from it, a macro parameter that receives it, or a variable named content.
[[nodiscard]] ContentFormat detect_content_format(const jinja::Body& body);

}  // namespace troupe
