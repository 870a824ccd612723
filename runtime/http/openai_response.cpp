#include "runtime/http/openai_response.hpp"

#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "runtime/base/utf8.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

constexpr std::string_view kChatObject = "chat.completion";
constexpr float kMinLogprob = -9999;  // JSON has no infinity

void append_logprob(std::string& json, float logprob) {
  append_json_float(json, std::max(logprob, kMinLogprob));
}

void append_tokens(std::string& json, const std::vector<TokenId>* tokens) {
  if (tokens == nullptr) {
    json += "null";
  } else {
    append_json_array(json, *tokens,
                      [](std::string& out, TokenId token) { append_json_integer(out, token); });
  }
}

void append_optional_text(std::string& json, const std::string* text) {
  if (text == nullptr) {
    json += "null";
  } else {
    append_json_string(json, *text);
  }
}

void append_finish(std::string& json, const CompletionOutput& output,
                   bool ends_with_calls = false) {
  json += ",\"finish_reason\":";
  if (output.finish_reason == FinishReason::kStop && ends_with_calls) {
    json += "\"tool_calls\"";
  } else if (output.finish_reason) {
    append_json_string(json, to_string(*output.finish_reason));
  } else {
    json += "null";
  }
}

void append_stop_reason(std::string& json, const StopReason& reason) {
  json += ",\"stop_reason\":";
  if (const auto* token = std::get_if<TokenId>(&reason)) {
    append_json_integer(json, *token);
  } else if (const auto* text = std::get_if<std::string>(&reason)) {
    append_json_string(json, *text);
  } else {
    json += "null";
  }
}

/// Ends the object of an answer.
void append_transfer_params(std::string& json, const std::string& kv_transfer_params,
                            const std::string& ec_transfer_params) {
  json += ",\"kv_transfer_params\":";
  json += kv_transfer_params.empty() ? "null" : kv_transfer_params;
  json += ",\"ec_transfer_params\":";
  json += ec_transfer_params.empty() ? "null" : ec_transfer_params;
  json += ",\"metrics\":null}";
}

}  // namespace

void append_head(std::string& json, const AnswerHead& head, std::string_view object) {
  json += "{\"id\":";
  append_json_string(json, head.id);
  json.append(",\"object\":\"").append(object).append("\",\"created\":");
  append_json_integer(json, head.created);
  json += ",\"model\":";
  append_json_string(json, head.model);
}

void append_blended_tokens(std::string& json, const Usage& usage) {
  if (usage.num_blended_tokens == 0) return;
  json += ",\"blended_tokens\":";
  append_json_integer(json, usage.num_blended_tokens);
}

void append_usage(std::string& json, const Usage& usage, bool nulls) {
  json += "\"usage\":{\"prompt_tokens\":";
  append_json_integer(json, usage.num_prompt_tokens);
  json += ",\"total_tokens\":";
  append_json_integer(json, usage.num_prompt_tokens + usage.num_completion_tokens);
  json += ",\"completion_tokens\":";
  append_json_integer(json, usage.num_completion_tokens);
  if (usage.show_details || usage.num_blended_tokens > 0) {
    json += ",\"prompt_tokens_details\":{\"cached_tokens\":";
    append_json_integer(json, usage.num_cached_tokens);
    json += ",\"created_cache_tokens\":";
    append_json_integer(json, usage.num_cache_creation_tokens);
    if (usage.num_loaded_tokens() > 0) {  // vLLM does not tell
      json += ",\"cached_tokens_by_source\":{\"device\":";
      append_json_integer(json, usage.num_cached_tokens - usage.num_loaded_tokens());
      json += ",\"host\":";
      append_json_integer(json, usage.num_host_cached_tokens);
      json += ",\"disk\":";
      append_json_integer(json, usage.num_disk_cached_tokens);
      json += ",\"remote\":";
      append_json_integer(json, usage.num_remote_cached_tokens);
      json += ",\"peer\":";
      append_json_integer(json, usage.num_peer_cached_tokens);
      json += "}";
    }
    append_blended_tokens(json, usage);
    json += nulls ? ",\"multimodal_tokens\":null}" : "}";
  } else if (nulls) {
    json += ",\"prompt_tokens_details\":null";
  }
  if (usage.num_reasoning_tokens) {
    json += ",\"completion_tokens_details\":{\"reasoning_tokens\":";
    append_json_integer(json, *usage.num_reasoning_tokens);
    json += "}}";
  } else {
    json += nulls ? ",\"completion_tokens_details\":null}" : "}";
  }
}

namespace {

std::string token_text(const Logprob& entry, const ChoiceFormat& format) {
  return format.tokens_as_ids ? "token_id:" + std::to_string(entry.token_id) : entry.token;
}

/// The entries of one position without duplicates: the position's own token may recur among the top
/// ones.
std::vector<const Logprob*> distinct(const PositionLogprobs& position) {
  std::vector<const Logprob*> entries;
  for (const Logprob& entry : position) {
    if (entries.empty() || entry.token_id != position.front().token_id) entries.push_back(&entry);
  }
  return entries;
}

/// {"token":logprob,...}. Different tokens may have the same text: as in a Python dict, the
/// position is that of the first and the value that of the last.
void append_top_logprobs(std::string& json, const PositionLogprobs& position,
                         const ChoiceFormat& format) {
  std::vector<const Logprob*> entries = distinct(position);
  if (*format.num_logprobs >= 0) {
    const auto limit = static_cast<std::size_t>(*format.num_logprobs) + 1;
    if (entries.size() > limit) entries.resize(limit);
  }
  std::unordered_map<std::string, const Logprob*> last;
  for (const Logprob* entry : entries) last[token_text(*entry, format)] = entry;
  json += '{';
  bool first = true;
  for (const Logprob* entry : entries) {
    const auto found = last.find(token_text(*entry, format));
    if (found == last.end()) continue;
    if (!first) json += ',';
    first = false;
    append_json_string(json, found->first);
    json += ':';
    append_logprob(json, found->second->logprob);
    last.erase(found);
  }
  json += '}';
}

/// A position without log-probabilities (the first one of a prompt) gets nulls.
void append_completion_logprobs(std::string& json, const CompletionChoice& choice,
                                const ChoiceFormat& format) {
  const std::vector<PositionLogprobs>& positions = choice.output.logprobs;
  std::vector<std::string> texts;
  texts.reserve(positions.size());
  for (const PositionLogprobs& position : positions) {
    texts.push_back(position.empty() ? choice.first_token_text
                                     : token_text(position.front(), format));
  }
  json += "{\"text_offset\":";
  std::size_t offset = choice.text_offset;
  append_json_array(json, texts, [&](std::string& out, const std::string& text) {
    append_json_integer(out, offset);
    offset += unicode::count(text);
  });
  json += ",\"token_logprobs\":";
  append_json_array(json, positions, [](std::string& out, const PositionLogprobs& position) {
    if (position.empty()) {
      out += "null";
    } else {
      append_logprob(out, position.front().logprob);
    }
  });
  json += ",\"tokens\":";
  append_json_array(json, texts, [](std::string& out, const std::string& text) {
    append_json_string(out, text);
  });
  json += ",\"top_logprobs\":";
  append_json_array(json, positions, [&](std::string& out, const PositionLogprobs& position) {
    if (position.empty()) {
      out += "null";
    } else {
      append_top_logprobs(out, position, format);
    }
  });
  json += '}';
}

void append_chat_token(std::string& json, const Logprob& entry, const ChoiceFormat& format) {
  const std::string text = token_text(entry, format);
  json += "{\"token\":";
  append_json_string(json, text);
  json += ",\"logprob\":";
  append_logprob(json, entry.logprob);
  json += ",\"bytes\":";
  append_json_array(json, text, [](std::string& out, char byte) {
    append_json_integer(out, static_cast<int>(static_cast<unsigned char>(byte)));
  });
}

}  // namespace

void append_token_logprobs(std::string& json, const std::vector<PositionLogprobs>& positions,
                           const ChoiceFormat& format) {
  append_json_array(json, positions, [&](std::string& out, const PositionLogprobs& position) {
    if (position.empty()) {
      out += "null";
      return;
    }
    append_chat_token(out, position.front(), format);
    std::vector<const Logprob*> entries = distinct(position);
    if (*format.num_logprobs >= 0) {
      entries.resize(std::min(entries.size(), static_cast<std::size_t>(*format.num_logprobs)));
    }
    out += ",\"top_logprobs\":";
    append_json_array(out, entries, [&](std::string& inner, const Logprob* entry) {
      append_chat_token(inner, *entry, format);
      inner += '}';
    });
    out += '}';
  });
}

namespace {

void append_chat_logprobs(std::string& json, const std::vector<PositionLogprobs>& positions,
                          const ChoiceFormat& format) {
  json += "{\"content\":";
  append_token_logprobs(json, positions, format);
  json += '}';
}

/// [null, {"<id>":{"logprob":..,"rank":..,"decoded_token":".."}}, ...]
void append_prompt_logprobs(std::string& json, const std::vector<PositionLogprobs>* positions) {
  if (positions == nullptr) {
    json += "null";
    return;
  }
  append_json_array(json, *positions, [](std::string& out, const PositionLogprobs& position) {
    if (position.empty()) {
      out += "null";
      return;
    }
    char separator = '{';
    for (const Logprob* entry : distinct(position)) {
      out += separator;
      separator = ',';
      out.append(1, '"').append(std::to_string(entry->token_id)).append("\":{\"logprob\":");
      append_logprob(out, entry->logprob);
      out += ",\"rank\":";
      append_json_integer(out, entry->rank);
      out += ",\"decoded_token\":";
      append_json_string(out, entry->token);
      out += '}';
    }
    out += '}';
  });
}

void append_completion_choice(std::string& json, const CompletionChoice& choice,
                              const ChoiceFormat& format) {
  json += "{\"index\":";
  append_json_integer(json, choice.output.index);
  json += ",\"text\":";
  append_json_string(json, choice.output.text);
  json += ",\"logprobs\":";
  if (format.num_logprobs) {
    append_completion_logprobs(json, choice, format);
  } else {
    json += "null";
  }
  append_finish(json, choice.output);
  append_stop_reason(json, choice.output.stop_reason);
}

const std::vector<TokenId>* shown_ids(const CompletionOutput& output, const ChoiceFormat& format) {
  return format.show_token_ids ? &output.token_ids : nullptr;
}

/// Reserves space for the texts, so that a large response is not copied while it grows.
template <class Choices, class Size>
std::size_t num_text_bytes(const Choices& choices, const Size& size) {
  constexpr std::size_t kChoiceBytes = 512;  // around the text
  std::size_t total = kChoiceBytes;
  for (const auto& choice : choices) total += size(choice) + size(choice) / 16 + kChoiceBytes;
  return total;
}

void append_optional_usage(std::string& json, const Usage* usage) {
  if (usage == nullptr) return;
  json += ',';
  append_usage(json, *usage, false);
}

}  // namespace

std::string completion_json(const CompletionAnswer& answer, const ChoiceFormat& format) {
  std::string json;
  json.reserve(num_text_bytes(
      answer.choices, [](const CompletionChoice& choice) { return choice.output.text.size(); }));
  append_head(json, answer.head, kCompletionObject);
  json += ",\"choices\":";
  append_json_array(json, answer.choices, [&](std::string& out, const CompletionChoice& choice) {
    append_completion_choice(out, choice, format);
    out += ",\"token_ids\":";
    append_tokens(out, shown_ids(choice.output, format));
    out += ",\"prompt_logprobs\":";
    append_prompt_logprobs(out, choice.prompt_logprobs);
    out += ",\"prompt_token_ids\":";
    append_tokens(out, choice.prompt_token_ids);
    out += ",\"routed_experts\":null}";
  });
  json += ",\"service_tier\":null,\"system_fingerprint\":null,";
  append_usage(json, answer.usage, true);
  append_transfer_params(json, answer.kv_transfer_params, answer.ec_transfer_params);
  return json;
}

void append_completion_event(std::string& out, const AnswerHead& head,
                             const CompletionChoice& choice, const ChoiceFormat& format,
                             const Usage* usage) {
  out += "data: ";
  append_head(out, head, kCompletionObject);
  out += ",\"choices\":[";
  append_completion_choice(out, choice, format);
  out += ",\"prompt_token_ids\":";
  append_tokens(out, choice.prompt_token_ids);
  out += ",\"token_ids\":";
  append_tokens(out, shown_ids(choice.output, format));
  out += "}]";
  append_optional_usage(out, usage);
  out += "}\n\n";
}

namespace {

/// Also under the name that vLLM had for it before.
void append_reasoning(std::string& json, const std::string& reasoning) {
  json += "\"reasoning\":";
  append_json_string(json, reasoning);
  json += ",\"reasoning_content\":";
  append_json_string(json, reasoning);
}

/// `whole`: of a response, not of an event.
void append_tool_calls(std::string& json, const std::vector<ShownToolCall>& calls, bool whole) {
  json += "\"tool_calls\":";
  append_json_array(json, calls, [&](std::string& out, const ShownToolCall& call) {
    out += '{';
    if (!call.id.empty()) {
      out += "\"id\":";
      append_json_string(out, call.id);
      out += ",\"type\":\"function\",";
    }
    if (!whole) {
      out += "\"index\":";
      append_json_integer(out, call.index);
      out += ',';
    }
    out += "\"function\":{";
    if (!call.name.empty()) {
      out += "\"name\":";
      append_json_string(out, call.name);
      out += ',';
    }
    out += "\"arguments\":";
    append_json_string(out, call.arguments);
    out += "}}";
  });
}

void append_chat_message(std::string& out, const ChatMessage& message) {
  out += ",\"content\":";
  // Content that is missing beside something else is null.
  if (message.content.empty() && (!message.tool_calls.empty() || !message.reasoning.empty())) {
    out += "null";
  } else {
    append_json_string(out, message.content);
  }
  out += ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,";
  if (!message.tool_calls.empty()) {
    append_tool_calls(out, message.tool_calls, true);
    out += ',';
  }
  if (message.reasoning.empty()) {
    out += "\"reasoning\":null";
  } else {
    append_reasoning(out, message.reasoning);
  }
}

/// At least one field.
void append_chat_delta(std::string& out, const ChatMessage& message) {
  out += '{';
  if (!message.reasoning.empty()) append_reasoning(out, message.reasoning);
  if (!message.content.empty() || (message.reasoning.empty() && message.tool_calls.empty())) {
    if (!message.reasoning.empty()) out += ',';
    out += "\"content\":";
    append_json_string(out, message.content);
  }
  if (!message.tool_calls.empty()) {
    if (out.back() != '{') out += ',';
    append_tool_calls(out, message.tool_calls, false);
  }
  out += '}';
}

std::size_t num_bytes(const ChatMessage& message) {
  std::size_t size = 2 * message.reasoning.size() + message.content.size();
  for (const ShownToolCall& call : message.tool_calls) size += call.arguments.size();
  return size;
}

}  // namespace

std::string chat_json(const ChatAnswer& answer, const ChoiceFormat& format) {
  std::string json;
  json.reserve(num_text_bytes(answer.choices,
                              [](const ChatChoice& choice) { return num_bytes(choice.message); }));
  append_head(json, answer.head, kChatObject);
  json += ",\"choices\":";
  append_json_array(json, answer.choices, [&](std::string& out, const ChatChoice& choice) {
    const CompletionOutput& output = choice.output;
    out += "{\"index\":";
    append_json_integer(out, output.index);
    out += ",\"message\":{\"role\":";
    append_json_string(out, answer.role);
    append_chat_message(out, choice.message);
    out += "},\"logprobs\":";
    if (format.num_logprobs) {
      append_chat_logprobs(out, output.logprobs, format);
    } else {
      out += "null";
    }
    append_finish(out, output, choice.ends_with_calls);
    append_stop_reason(out, output.stop_reason);
    out += ",\"token_ids\":";
    append_tokens(out, shown_ids(output, format));
    out += ",\"routed_experts\":null}";
  });
  json += ",\"service_tier\":null,\"system_fingerprint\":null,";
  append_usage(json, answer.usage, true);
  json += ",\"prompt_logprobs\":";
  append_prompt_logprobs(json, answer.prompt_logprobs);
  json += ",\"prompt_token_ids\":";
  append_tokens(json, answer.prompt_token_ids);
  json += ",\"prompt_text\":";
  append_optional_text(json, answer.prompt_text);
  append_transfer_params(json, answer.kv_transfer_params, answer.ec_transfer_params);
  return json;
}

void append_chat_role_event(std::string& out, const AnswerHead& head, std::int32_t index,
                            std::string_view role, const std::vector<TokenId>* prompt_token_ids,
                            const std::string* prompt_text, const Usage* usage) {
  out += "data: ";
  append_head(out, head, kChatChunkObject);
  out += ",\"choices\":[{\"index\":";
  append_json_integer(out, index);
  out += ",\"delta\":{\"role\":";
  append_json_string(out, role);
  out += ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":";
  append_tokens(out, prompt_token_ids);
  out += ",\"prompt_text\":";
  append_optional_text(out, prompt_text);
  append_optional_usage(out, usage);
  out += "}\n\n";
}

void append_chat_event(std::string& out, const AnswerHead& head, const ChatChoice& choice,
                       const ChoiceFormat& format, const Usage* usage) {
  const CompletionOutput& output = choice.output;
  out += "data: ";
  append_head(out, head, kChatChunkObject);
  out += ",\"choices\":[{\"index\":";
  append_json_integer(out, output.index);
  out += ",\"delta\":";
  append_chat_delta(out, choice.message);
  out += ",\"logprobs\":";
  if (format.num_logprobs && !output.logprobs.empty()) {
    append_chat_logprobs(out, output.logprobs, format);
  } else {
    out += "null";
  }
  append_finish(out, output, choice.ends_with_calls);
  if (output.finish_reason) append_stop_reason(out, output.stop_reason);
  out += ",\"token_ids\":";
  append_tokens(out, shown_ids(output, format));
  out += "}]";
  append_optional_usage(out, usage);
  out += "}\n\n";
}

void append_usage_event(std::string& out, const AnswerHead& head, std::string_view object,
                        const Usage& usage) {
  out += "data: ";
  append_head(out, head, object);
  out += ",\"choices\":[]";
  append_optional_usage(out, &usage);
  out += "}\n\n";
}

void append_event_id(std::string& out, std::string_view id) {
  out.append("id: ").append(id).append("\n");
}

namespace {

struct ErrorForm {
  int status;
  std::string_view type;
};

ErrorForm error_form(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnprocessable:  // vLLM: 422
      return {400, "BadRequestError"};
    case ErrorCode::kCorrupt:
      return {400, "Bad Request"};
    case ErrorCode::kUnauthorized:
      return {401, "AuthenticationError"};
    case ErrorCode::kNotFound:
      return {404, "NotFoundError"};
    case ErrorCode::kTooLarge:
      return {413, "Payload Too Large"};
    case ErrorCode::kUnsupported:  // not 501, on which OpenAI's client tries again
      return {400, "BadRequestError"};
    case ErrorCode::kOverloaded:
      return {503, "Service Unavailable"};
    case ErrorCode::kUnavailable:
      return {503, "ServiceUnavailableError"};
    case ErrorCode::kRateLimited:
      return {429, "RateLimitError"};
    case ErrorCode::kTimeout:
      return {504, "Gateway Timeout"};
    default:
      return {500, "InternalServerError"};
  }
}

/// `code`: as JSON.
std::string error_text(std::string_view type, std::string_view message, std::string_view param,
                       std::string_view code) {
  std::string json = "{\"error\":{\"message\":";
  append_json_string(json, message);
  json += ",\"type\":";
  append_json_string(json, type);
  json += ",\"param\":";
  if (param.empty()) {
    json += "null";
  } else {
    append_json_string(json, param);
  }
  return json.append(",\"code\":").append(code).append("}}");
}

}  // namespace

int http_status(ErrorCode code) noexcept { return error_form(code).status; }

std::string error_json(const Error& error) {
  const ErrorForm form = error_form(error.code);
  if (error.code == ErrorCode::kUnsupported)
    return error_text(form.type, error.message, error.param, "\"unsupported_parameter\"");
  if (error.code == ErrorCode::kRateLimited)
    return error_text(form.type, error.message, error.param, "\"rate_limit_exceeded\"");
  return error_json(form.status, form.type, error.message, error.param);
}

std::string error_json(int status, std::string_view type, std::string_view message,
                       std::string_view param) {
  return error_text(type, message, param, std::to_string(status));
}

}  // namespace troupe
