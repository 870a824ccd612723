#pragma once
// OpenAI's Responses API: POST /v1/responses and what has been stored of it. A request is rewritten
// as one of the chat API, so that both have the same checks.

#include <memory>
#include <string>
#include <string_view>

#include "runtime/http/openai_request.hpp"
#include "runtime/http/response_store.hpp"

namespace troupe {

/// What a response says of its request, and where it is stored.
struct ResponseSettings {
  std::string fields;              ///< of the response, as members of a JSON object
  std::string input;               ///< items of the request, as a JSON array
  std::string conversation;        ///< messages before the answer, as elements of a JSON array
  ResponseStore* store = nullptr;  ///< null: it is not stored
  std::string owner;
};

/// A request that may go on with a stored conversation.
struct ResponsesRequest {
  std::string previous_id;   ///< empty: none
  std::string chat_fields;   ///< of the chat request, as members of a JSON object
  std::string instructions;  ///< a message, or empty
  std::string messages;      ///< of the input, as elements of a JSON array
  bool store = true;
  ResponseSettings settings;
};

/// Errors name the field of the Responses API, or of the chat API that it stands for.
[[nodiscard]] Result<ResponsesRequest> parse_responses_request(std::string_view body);

/// The chat behind `previous`, the elements of a JSON array of messages.
[[nodiscard]] Result<ChatRequest> chat_of(ResponsesRequest request, const std::string& previous,
                                          const ServerDefaults& defaults);

}  // namespace troupe
