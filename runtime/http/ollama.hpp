#pragma once
// Ollama's API: POST /api/chat and /api/generate, and what its clients ask about models. A request
// is rewritten as one of OpenAI's chat API, so that both have the same checks.

#include <string_view>

#include "runtime/http/body_shape.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Errors name the field of Ollama's API, or of the chat API that it stands for.
[[nodiscard]] Result<ChatRequest> parse_ollama_chat(std::string_view body,
                                                    const ServerDefaults& defaults);
[[nodiscard]] Result<ChatRequest> parse_ollama_generate(std::string_view body,
                                                        const ServerDefaults& defaults);

/// The name that a client of Ollama gives a served model: "demo:latest" is "demo".
[[nodiscard]] std::string_view without_latest(std::string_view model) noexcept;

/// The fields of a request; `chat`: what the chat API reads.
[[nodiscard]] BodyShape ollama_chat_shape(const BodyShape& chat);
[[nodiscard]] BodyShape ollama_generate_shape(const BodyShape& chat);

}  // namespace troupe
