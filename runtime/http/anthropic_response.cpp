#include <algorithm>
#include <optional>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/http/anthropic.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string message_error_body(int status, const Error& error) {
  std::string json = R"({"type":"error","error":{"type":)";
  append_json_string(json, error_type(status));
  json += ",\"message\":";
  append_json_string(json, error.message);
  return json + "}}";
}

void append_event(std::string& out, std::string_view type, std::string_view json) {
  out.append("event: ").append(type).append("\ndata: ").append(json).append("\n\n");
}

void append_message_error(std::string& out, const Error& error) {
  append_event(out, "error", message_error_body(http_status(error.code), error));
}

void append_field(std::string& out, std::string_view name, std::string_view text) {
  out.append(",\"").append(name).append("\":");
  append_json_string(out, text);
}

/// Clients add the three numbers of input tokens: none is in two of them.
void append_usage(std::string& out, const Usage& usage) {
  out += "{\"input_tokens\":";
  const std::int64_t in_cache = usage.num_cached_tokens + usage.num_cache_creation_tokens;
  append_json_integer(out, std::max<std::int64_t>(0, usage.num_prompt_tokens - in_cache));
  out += ",\"output_tokens\":";
  append_json_integer(out, usage.num_completion_tokens);
  out += ",\"cache_read_input_tokens\":";
  append_json_integer(out, usage.num_cached_tokens);
  out += ",\"cache_creation_input_tokens\":";
  append_json_integer(out, usage.num_cache_creation_tokens);
  append_blended_tokens(out, usage);
  out += '}';
}

/// The fields "stop_reason" and "stop_sequence".
void append_stop(std::string& out, const ChatChoice& choice, bool has_calls) {
  const auto* sequence = std::get_if<std::string>(&choice.output.stop_reason);
  std::string_view reason = "end_turn";
  if (choice.output.finish_reason != FinishReason::kStop) {
    reason = "max_tokens";
  } else if (has_calls) {
    reason = "tool_use";
  } else if (sequence != nullptr) {
    reason = "stop_sequence";
  }
  out.append("\"stop_reason\":\"").append(reason).append("\",\"stop_sequence\":");
  if (sequence != nullptr && reason == "stop_sequence") {
    append_json_string(out, *sequence);
  } else {
    out += "null";
  }
}

/// An object; arguments that the model has not written as one are shown as they are.
void append_input(std::string& out, const std::string& arguments) {
  if (parse_bounded_json<nlohmann::json>(arguments).is_object()) {
    out += arguments;
    return;
  }
  out += "{\"INVALID_JSON\":";
  append_json_string(out, arguments);
  out += '}';
}

enum class Block : std::uint8_t { kNone, kThinking, kText, kToolUse };

class MessagesWriter final : public ChatWriter {
 public:
  explicit MessagesWriter(const AnswerHead& head) : head_(head) {}

  void append_begin(std::string& out, const ChatBegin& begin) override {
    std::string json = R"({"type":"message_start","message":)";
    append_message_begin(json);
    json += R"("content":[],"stop_reason":null,"stop_sequence":null,"usage":)";
    append_usage(json, begin.prompt_usage);
    append_event(out, "message_start", json + "}}");
    append_event(out, "ping", R"({"type":"ping"})");
  }

  void append_delta(std::string& out, const ChatChoice& choice, const ChoiceFormat&,
                    const Usage*) override {
    const ChatMessage& message = choice.message;
    if (!message.reasoning.empty()) {
      if (open_ != Block::kThinking)
        open(out, Block::kThinking, R"("type":"thinking","thinking":"","signature":"")");
      append_block_delta(out, "thinking_delta", "thinking", message.reasoning);
    }
    if (!message.content.empty()) {
      if (open_ != Block::kText) open(out, Block::kText, R"("type":"text","text":"")");
      append_block_delta(out, "text_delta", "text", message.content);
    }
    has_calls_ |= !message.tool_calls.empty();
    for (const ShownToolCall& call : message.tool_calls) {
      if (!call.name.empty()) {
        std::string block = R"("type":"tool_use")";
        append_field(block, "id", call.id);
        append_field(block, "name", call.name);
        open(out, Block::kToolUse, block + ",\"input\":{}");
      }
      if (!call.arguments.empty())
        append_block_delta(out, "input_json_delta", "partial_json", call.arguments);
    }
    if (!choice.output.finish_reason) return;
    if (num_blocks_ == 0) open(out, Block::kText, R"("type":"text","text":"")");
    close(out);
    append_stop(stop_, choice, has_calls_);
  }

  void append_end(std::string& out, const Usage& usage) override {
    std::string json = R"({"type":"message_delta","delta":{)" + stop_ + "},\"usage\":";
    append_usage(json, usage);
    append_event(out, "message_delta", json + '}');
    append_event(out, "message_stop", R"({"type":"message_stop"})");
  }

  std::string whole(const ChatAnswer& answer, const ChoiceFormat&) override {
    const ChatChoice& choice = answer.choices.front();
    const ChatMessage& message = choice.message;
    std::string json;
    append_message_begin(json);
    json += "\"content\":[";
    const auto next = [&] {
      if (json.back() != '[') json += ',';
    };
    if (!message.reasoning.empty()) {
      json += R"({"type":"thinking")";
      append_field(json, "thinking", message.reasoning);
      append_field(json, "signature", signature());
      json += '}';
    }
    if (!message.content.empty() || (message.tool_calls.empty() && message.reasoning.empty())) {
      next();
      json += R"({"type":"text")";
      append_field(json, "text", message.content);
      json += '}';
    }
    for (const ShownToolCall& call : message.tool_calls) {
      next();
      json += R"({"type":"tool_use")";
      append_field(json, "id", call.id);
      append_field(json, "name", call.name);
      json += ",\"input\":";
      append_input(json, call.arguments);
      json += '}';
    }
    json += "],";
    append_stop(json, choice, !message.tool_calls.empty());
    json += ",\"usage\":";
    append_usage(json, answer.usage);
    return json + '}';
  }

 private:
  void append_message_begin(std::string& out) const {
    out += R"({"id":)";
    append_json_string(out, head_.id);
    out += R"(,"type":"message","role":"assistant")";
    append_field(out, "model", head_.model);
    out += ',';
  }

  /// Clients send it back with the thinking; it says nothing here, and is the same for each stream
  /// of an answer.
  [[nodiscard]] std::string_view signature() const {
    return std::string_view(head_.id).substr(head_.id.find('_') + 1);
  }

  /// Begins a block; `fields` are those of its beginning.
  void open(std::string& out, Block block, std::string_view fields) {
    close(out);
    open_ = block;
    std::string json = R"({"type":"content_block_start","index":)";
    append_json_integer(json, num_blocks_++);
    json.append(",\"content_block\":{").append(fields);
    append_event(out, "content_block_start", json + "}}");
  }

  void close(std::string& out) {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kThinking)
      append_block_delta(out, "signature_delta", "signature", signature());
    open_ = Block::kNone;
    std::string json = R"({"type":"content_block_stop","index":)";
    append_json_integer(json, num_blocks_ - 1);
    append_event(out, "content_block_stop", json + '}');
  }

  void append_block_delta(std::string& out, std::string_view type, std::string_view field,
                          std::string_view text) const {
    std::string json = R"({"type":"content_block_delta","index":)";
    append_json_integer(json, num_blocks_ - 1);
    json.append(R"(,"delta":{"type":")").append(type).append("\"");
    append_field(json, field, text);
    append_event(out, "content_block_delta", json + "}}");
  }

  const AnswerHead& head_;
  Block open_ = Block::kNone;
  std::int32_t num_blocks_ = 0;
  bool has_calls_ = false;
  std::string stop_;  ///< why it has stopped, as fields
};

}  // namespace

const Dialect kAnthropicDialect = {.stream_type = "text/event-stream; charset=utf-8",
                                   .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                   .stream_end = "",
                                   .error_body = message_error_body,
                                   .append_error_event = append_message_error};

const ChatApi kAnthropicMessages = {.dialect = kAnthropicDialect,
                                    .id_prefix = "msg_",
                                    .is_resumable = false,
                                    .make_writer = [](const AnswerHead& head, const ChatRequest&) {
                                      return std::unique_ptr<ChatWriter>(new MessagesWriter(head));
                                    }};

}  // namespace troupe
