#pragma once
// The responses of the OpenAI API as text: key order and nulls are vLLM's. Streams are
// `text/event-stream`; every event function appends one complete event.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/error.hpp"

namespace troupe {

/// The common head of all objects of one response.
struct AnswerHead {
  std::string id;
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;
  std::int64_t completed = 0;  ///< seconds since 1970; 0: it is not complete
};

/// Token counts of a response, over all prompts and samples.
struct Usage {
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_completion_tokens = 0;
  bool show_details = false;
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_cache_creation_tokens = 0;
  /// Of the cached ones, those that a KV connector has loaded, by where they were.
  std::int64_t num_host_cached_tokens = 0;
  std::int64_t num_disk_cached_tokens = 0;
  std::int64_t num_peer_cached_tokens = 0;
  /// In whose place stand cached tokens of other prompts (BlendConnector): the answer is not exact.
  std::int64_t num_blended_tokens = 0;
  std::int64_t num_remote_cached_tokens = 0;
  std::optional<std::int64_t> num_reasoning_tokens =
      std::nullopt;  ///< none: the model has no reasoning

  [[nodiscard]] std::int64_t num_loaded_tokens() const noexcept {
    return num_host_cached_tokens + num_disk_cached_tokens + num_peer_cached_tokens +
           num_remote_cached_tokens;
  }
};

/// Appends `{"id":...,"object":...,"created":...,"model":...`.
void append_head(std::string& json, const AnswerHead& head, std::string_view object);
/// Appends `"usage":{...}`. `nulls`: whether fields without a value are written.
void append_usage(std::string& json, const Usage& usage, bool nulls);
/// Appends `,"blended_tokens":N`, if there are any.
void append_blended_tokens(std::string& json, const Usage& usage);

/// How the samples of a response are formatted.
struct ChoiceFormat {
  std::optional<std::int32_t> num_logprobs;  ///< alternatives per token; nullopt: null
  bool show_token_ids = false;
  bool tokens_as_ids = false;  ///< tokens in logprobs are shown as "token_id:<id>"
};

/// One sample of a completion. `output` includes the echoed prompt, if requested.
struct CompletionChoice {
  CompletionOutput output;
  std::size_t text_offset = 0;   ///< code points before `output.text`
  std::string first_token_text;  ///< of a first position that has no log-probabilities
  const std::vector<TokenId>* prompt_token_ids = nullptr;          ///< null: not shown
  const std::vector<PositionLogprobs>* prompt_logprobs = nullptr;  ///< null: not shown
};

struct CompletionAnswer {
  AnswerHead head;
  std::vector<CompletionChoice> choices;
  Usage usage;
  std::string kv_transfer_params;  ///< a JSON object, or empty
  std::string ec_transfer_params;  ///< the same
};
[[nodiscard]] std::string completion_json(const CompletionAnswer& answer,
                                          const ChoiceFormat& format);
/// `usage`: with the chunk, or null.
void append_completion_event(std::string& out, const AnswerHead& head,
                             const CompletionChoice& choice, const ChoiceFormat& format,
                             const Usage* usage);

/// A tool call, or a part of one: `id` and `name` with the first part only.
struct ShownToolCall {
  std::int32_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
};

/// What the text of a sample says.
struct ChatMessage {
  std::string reasoning;
  std::string content;  ///< includes the echoed message, if requested
  std::vector<ShownToolCall> tool_calls;
};

/// One sample of a chat. The text of `output` is in `message`.
struct ChatChoice {
  CompletionOutput output;
  ChatMessage message;
  bool ends_with_calls = false;  ///< the finish reason "stop" is "tool_calls"
};

struct ChatAnswer {
  AnswerHead head;
  std::string role;
  std::vector<ChatChoice> choices;
  Usage usage;
  std::string kv_transfer_params;  ///< as in CompletionAnswer
  std::string ec_transfer_params;  ///< the same
  const std::vector<TokenId>* prompt_token_ids = nullptr;
  const std::vector<PositionLogprobs>* prompt_logprobs = nullptr;
  const std::string* prompt_text = nullptr;
  std::optional<double> first_token_s = std::nullopt;  ///< after the request's arrival
};
[[nodiscard]] std::string chat_json(const ChatAnswer& answer, const ChoiceFormat& format);
/// The first event of a choice: its role.
void append_chat_role_event(std::string& out, const AnswerHead& head, std::int32_t index,
                            std::string_view role, const std::vector<TokenId>* prompt_token_ids,
                            const std::string* prompt_text, const Usage* usage);
/// `choice.message`: what this event adds.
void append_chat_event(std::string& out, const AnswerHead& head, const ChatChoice& choice,
                       const ChoiceFormat& format, const Usage* usage);

/// An array of tokens with their alternatives. Pre: format.num_logprobs.
void append_token_logprobs(std::string& json, const std::vector<PositionLogprobs>& positions,
                           const ChoiceFormat& format);

/// The event with usage only, which ends a stream that requests it. `object` is the stream's.
void append_usage_event(std::string& out, const AnswerHead& head, std::string_view object,
                        const Usage& usage);
/// Written before the event that it identifies.
void append_event_id(std::string& out, std::string_view id);

inline constexpr std::string_view kCompletionObject = "text_completion";
inline constexpr std::string_view kChatChunkObject = "chat.completion.chunk";

[[nodiscard]] int http_status(ErrorCode code) noexcept;
/// `{"error":{...}}`
[[nodiscard]] std::string error_json(const Error& error);
[[nodiscard]] std::string error_json(int status, std::string_view type, std::string_view message,
                                     std::string_view param = {});

}  // namespace troupe
