#pragma once
// Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens. A request is rewritten
// as one of OpenAI's chat API, so that both have the same checks.

#include <string_view>

#include "runtime/http/body_shape.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Errors name the field of the Messages API, or of the chat API that it stands for.
[[nodiscard]] Result<ChatRequest> parse_messages_request(std::string_view body,
                                                         const ServerDefaults& defaults);
[[nodiscard]] Result<TokenizeRequest> parse_count_tokens_request(std::string_view body,
                                                                 const ServerDefaults& defaults);

/// The fields of a request; `chat`: what the chat API reads.
[[nodiscard]] BodyShape messages_shape(const BodyShape& chat);
[[nodiscard]] BodyShape count_tokens_shape(const BodyShape& chat);

}  // namespace troupe
