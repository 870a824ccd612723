#pragma once

#include "runtime/chat/chat_template.hpp"
#include "runtime/chat/jinja/ast.hpp"

namespace troupe {

/// kOpenAi if some loop goes over a message's content: x.content or x["content"], a variable set
/// from it, a macro's parameter that gets it, or a variable of the name content.
[[nodiscard]] ContentFormat detect_content_format(const jinja::Body& body);

}  // namespace troupe
