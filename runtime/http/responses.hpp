#pragma once
// OpenAI's Responses API: POST /v1/responses and what has been stored of it. A request is rewritten
// as one of the chat API, so that both have the same checks.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/body_shape.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/openai_response.hpp"
#include "runtime/http/response_store.hpp"

namespace troupe {

/// What a response says of its request, and where it is stored.
struct ResponseSettings {
  std::string fields;              ///< of the response, as members of a JSON object
  std::string input;               ///< items of the request, as a JSON array
  std::string conversation;        ///< messages before the answer, as elements of a JSON array
  ResponseStore* store = nullptr;  ///< null: it is not stored
  std::string owner;
  bool encrypts_reasoning = false;  ///< include has reasoning.encrypted_content
  bool in_background = false;
  // Of a response in the background:
  std::string body;  ///< of the request
  std::string key;   ///< see ApiKeys::key_id
  /// What its writer makes for the store; null: it is not made in the background.
  std::shared_ptr<ResponseProgress> progress;
  std::int64_t num_events = 0;  ///< that are stored
};

/// A request that may continue a stored conversation.
struct ResponsesRequest {
  std::string previous_id;   ///< empty: none
  std::string chat_fields;   ///< of the chat request, as members of a JSON object
  std::string instructions;  ///< a message, or empty
  std::string messages;      ///< of the input, as elements of a JSON array
  bool store = true;
  bool may_truncate = false;  ///< drops the oldest messages of a conversation that is too long
  ResponseSettings settings;
};

/// Errors name the field of the Responses API, or of the chat API that it stands for.
[[nodiscard]] Result<ResponsesRequest> parse_responses_request(std::string_view body);

/// The chat behind `previous`, the elements of a JSON array of messages.
[[nodiscard]] Result<ChatRequest> chat_of(ResponsesRequest request, const std::string& previous,
                                          const ServerDefaults& defaults);

/// Each element of a JSON array of messages.
[[nodiscard]] std::vector<std::string> split_messages(const std::string& elements);
/// Whether the message begins a turn.
[[nodiscard]] bool is_of_user(const std::string& message);

/// Reasoning as clients get it to send it back. It says nothing more than the text that they get
/// too: nothing is encrypted.
[[nodiscard]] std::string encoded_reasoning(std::string_view text);

/// A response of which nothing has been made, as JSON.
[[nodiscard]] std::string queued_response(const AnswerHead& head, const ChatRequest& request);

/// An event of a stream. `members`: of its object, each with a comma before it.
void append_response_event(std::string& out, std::string_view type, std::int64_t number,
                           std::string_view members);

/// The fields of a request; `chat`: what the chat API reads.
[[nodiscard]] BodyShape responses_shape(const BodyShape& chat);

}  // namespace troupe
