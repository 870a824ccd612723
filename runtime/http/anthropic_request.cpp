#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/anthropic.hpp"
#include "runtime/http/cache_control.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/field_table.hpp"
#include "runtime/http/json_object.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

/// Claude Code puts this at the head of its system prompt; it is not for the model.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";
constexpr std::size_t kMaxStopSequences = 4;
constexpr std::int64_t kMinThinkingBudget = 1024;
constexpr RenamedField kMessagesNames[] = {
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"thinking_token_budget", "thinking.budget_tokens"},
};
/// Fields that mean the same in both APIs, or that only this server has.
constexpr SameField kMessagesSameFields[] = {
    {"model"},
    {"max_tokens", "max_tokens", true},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"stream"},
    {"seed"},
    {"min_p"},
    {"min_tokens"},
    {"ignore_eos"},
    {"repetition_penalty"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"stop_token_ids"},
    {"include_stop_str_in_output"},
    {"allowed_token_ids"},
    {"skip_special_tokens"},
    {"spaces_between_special_tokens"},
    {"repetition_detection"},
    {"logit_bias"},
    {"bad_words"},
    {"priority"},
    {"cache_salt"},
    {"request_id"},
    {"session_id"},
    {"data_parallel_rank"},
    {"max_queue_time_s"},
    {"max_request_time_s"},
    {"stream_interval"},
    {"truncate_prompt_tokens"},
    {"truncation_side"},
    {"chat_template"},
    {"mm_processor_kwargs"},
    {"media_io_kwargs"},
    {"structured_outputs"},
    {"kv_transfer_params"},
    {"ec_transfer_params"},
    {"vllm_xargs"},
    {"thinking_token_budget"},
    {"mm_payload"},
    {"return_mm_kwargs"},
    {"watermarking"},
};
constexpr OwnField kMessagesOwnFields[] = {
    {"messages", JsonTypes::kArray, true},        {"system", JsonTypes::kText | JsonTypes::kArray},
    {"stop_sequences", JsonTypes::kArray},        {"tools", JsonTypes::kArray},
    {"tool_choice", JsonTypes::kObject},          {"thinking", JsonTypes::kObject},
    {"output_config", JsonTypes::kObject},        {"metadata", JsonTypes::kObject},
    {"cache_control", JsonTypes::kObject},        {"service_tier", JsonTypes::kText},
    {"chat_template_kwargs", JsonTypes::kObject}, {"output_format", JsonTypes::kObject},
};
constexpr std::array kUnsupportedInMessages = {"mcp_servers", "container"};

Error wrong(const std::string& field, const std::string& what) {
  return invalid_argument(field + ": " + what, field);
}

Result<std::string> text_of(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string())
    return wrong(where + "." + name, "must be a string");
  return found->get<std::string>();
}

using Breakpoints = std::vector<CacheBreakpoint>;

/// Seconds of the block's cache_control; none: it has none.
Result<std::optional<double>> marked_ttl(const Json& block, const std::string& where) {
  const auto control = block.find("cache_control");
  if (control == block.end() || control->is_null()) return std::optional<double>();
  const std::string place = where + ".cache_control";
  if (!control->is_object()) return wrong(place, "must be an object");
  ASSIGN_OR_RETURN(const std::string type, text_of(*control, "type", place));
  std::string ttl;
  if (const auto given = control->find("ttl"); given != control->end() && !given->is_null()) {
    ASSIGN_OR_RETURN(ttl, text_of(*control, "ttl", place));
  }
  ASSIGN_OR_RETURN(const double ttl_s, parse_cache_control(type, ttl, place));
  return std::optional(ttl_s);
}

/// The texts of a string or of an array of text blocks, joined. Places that are marked are of
/// message 0.
Result<std::string> joined_text(const Json& content, const std::string& where,
                                Breakpoints& breakpoints) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return wrong(where, "must be a string or an array of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = where + "." + std::to_string(i);
    const Json& block = content[i];
    if (!block.is_object()) return wrong(place, "must be an object");
    ASSIGN_OR_RETURN(const std::string type, text_of(block, "type", place));
    if (type != "text") return wrong(place + ".type", "'" + type + "' is not supported here");
    ASSIGN_OR_RETURN(const std::string piece, text_of(block, "text", place));
    if (!piece.starts_with(kBillingHeader)) text += piece;
    ASSIGN_OR_RETURN(const std::optional<double> ttl_s, marked_ttl(block, place));
    if (ttl_s)
      breakpoints.push_back(
          {.message = 0, .length = static_cast<std::int32_t>(text.size()), .ttl_s = *ttl_s});
  }
  return text;
}

/// A message in the making: what its blocks have become.
struct Message {
  std::string text, reasoning;
  Json calls = Json::array();
  Json parts = Json::array();  ///< texts and images in order
  bool has_image = false;
  /// A place that is marked: so much was there before it.
  struct Mark {
    std::size_t num_bytes = 0;
    std::size_t num_parts = 0;
    bool is_whole = false;  ///< calls, which are behind all text
    double ttl_s = 0;
  };
  std::vector<Mark> marks;
};

/// The URL of an image block's source.
Result<std::string> image_url(const Json& block, const std::string& where) {
  const auto source = block.find("source");
  if (source == block.end() || !source->is_object())
    return wrong(where + ".source", "must be an object");
  const std::string place = where + ".source";
  ASSIGN_OR_RETURN(const std::string type, text_of(*source, "type", place));
  if (type == "url") return text_of(*source, "url", place);
  if (type != "base64") return wrong(place + ".type", "must be base64 or url");
  ASSIGN_OR_RETURN(const std::string media_type, text_of(*source, "media_type", place));
  ASSIGN_OR_RETURN(const std::string data, text_of(*source, "data", place));
  return "data:" + media_type + ";base64," + data;
}

/// The blocks of a tool's result that are no images. These go to the user's message behind it:
/// templates have texts alone as results.
Result<Json> without_images(const Json& content, const std::string& where, Message& message) {
  if (!content.is_array()) return content;
  Json others = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    if (!block.is_object() || block.value("type", Json()) != "image") {
      others.push_back(block);
      continue;
    }
    ASSIGN_OR_RETURN(std::string url, image_url(block, where + "." + std::to_string(i)));
    message.has_image = true;
    message.parts.push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
  }
  return others;
}

Json tool_call(const std::string& id, const std::string& name, const Json& input) {
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", input.dump()}}}};
}

/// Adds a block to the message, or a message of its own to `messages`.
Result<void> add_block(const Json& block, const std::string& where, bool is_assistant,
                       Message& message, Json& messages, Breakpoints& breakpoints) {
  if (!block.is_object()) return wrong(where, "must be an object");
  ASSIGN_OR_RETURN(const std::string type, text_of(block, "type", where));
  ASSIGN_OR_RETURN(const std::optional<double> ttl_s, marked_ttl(block, where));
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string text, text_of(block, "text", where));
    message.text += text;
    message.parts.push_back({{"type", "text"}, {"text", text}});
  } else if (type == "image" && !is_assistant) {
    ASSIGN_OR_RETURN(std::string url, image_url(block, where));
    message.has_image = true;
    message.parts.push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
  } else if (type == "thinking" && is_assistant) {
    ASSIGN_OR_RETURN(const std::string text, text_of(block, "thinking", where));
    message.reasoning += text;
  } else if (type == "redacted_thinking" && is_assistant) {
    return {};  // readable for its provider only
  } else if (type == "tool_use" && is_assistant) {
    ASSIGN_OR_RETURN(const std::string id, text_of(block, "id", where));
    ASSIGN_OR_RETURN(const std::string name, text_of(block, "name", where));
    const auto input = block.find("input");
    if (input == block.end() || !input->is_object())
      return wrong(where + ".input", "must be an object");
    message.calls.push_back(tool_call(id, name, *input));
  } else if (type == "tool_result" && !is_assistant) {
    ASSIGN_OR_RETURN(const std::string id, text_of(block, "tool_use_id", where));
    Json texts = "";
    if (const auto content = block.find("content"); content != block.end() && !content->is_null()) {
      ASSIGN_OR_RETURN(texts, without_images(*content, where + ".content", message));
    }
    Breakpoints inner;
    ASSIGN_OR_RETURN(std::string text, joined_text(texts, where + ".content", inner));
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
    const auto index = static_cast<std::int32_t>(messages.size()) - 1;
    for (CacheBreakpoint& each : inner) {
      each.message = index;
      breakpoints.push_back(each);
    }
    if (ttl_s) breakpoints.push_back({.message = index, .ttl_s = *ttl_s});
    return {};
  } else {
    return wrong(where + ".type", "'" + type + "' is not supported in a message of the " +
                                      (is_assistant ? "assistant" : "user"));
  }
  if (ttl_s)
    message.marks.push_back({.num_bytes = message.text.size(),
                             .num_parts = message.parts.size(),
                             .is_whole = type == "tool_use",
                             .ttl_s = *ttl_s});
  return {};
}

Result<void> add_message(const Json& given, const std::string& where, Json& messages,
                         Breakpoints& breakpoints) {
  if (!given.is_object()) return wrong(where, "must be an object");
  ASSIGN_OR_RETURN(const std::string role, text_of(given, "role", where));
  if (role != "user" && role != "assistant")
    return wrong(where + ".role", "must be user or assistant, not '" + role.substr(0, 64) + "'");
  const auto content = given.find("content");
  if (content == given.end()) return wrong(where + ".content", "Field required");
  if (content->is_string()) {
    messages.push_back({{"role", role}, {"content", *content}});
    return {};
  }
  if (!content->is_array())
    return wrong(where + ".content", "must be a string or an array of blocks");
  Message message;
  for (std::size_t i = 0; i < content->size(); ++i) {
    RETURN_IF_ERROR(add_block((*content)[i], where + ".content." + std::to_string(i),
                              role == "assistant", message, messages, breakpoints));
  }
  if (message.parts.empty() && message.calls.empty() && message.reasoning.empty()) return {};
  Json made = {{"role", role},
               {"content", message.has_image ? std::move(message.parts) : Json(message.text)}};
  if (!message.reasoning.empty()) {
    made["reasoning"] = message.reasoning;
    made["reasoning_content"] = message.reasoning;
  }
  if (!message.calls.empty()) made["tool_calls"] = std::move(message.calls);
  for (const Message::Mark& mark : message.marks)
    breakpoints.push_back(
        {.message = static_cast<std::int32_t>(messages.size()),
         .length = mark.is_whole ? -1
                                 : static_cast<std::int32_t>(message.has_image ? mark.num_parts
                                                                               : mark.num_bytes),
         .ttl_s = mark.ttl_s});
  messages.push_back(std::move(made));
  return {};
}

Result<void> add_messages(const Json& given, Json& chat, Breakpoints& breakpoints) {
  Json messages = Json::array();
  if (const auto system = given.find("system"); system != given.end() && !system->is_null()) {
    ASSIGN_OR_RETURN(std::string text, joined_text(*system, "system", breakpoints));
    if (!text.empty()) messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const auto found = given.find("messages");
  if (found->empty()) return wrong("messages", "must not be empty");
  for (std::size_t i = 0; i < found->size(); ++i)
    RETURN_IF_ERROR(
        add_message((*found)[i], "messages." + std::to_string(i), messages, breakpoints));
  // That of the request as a whole is at its end.
  ASSIGN_OR_RETURN(const std::optional<double> ttl_s, marked_ttl(given, "request"));
  if (ttl_s && !messages.empty())
    breakpoints.push_back(
        {.message = static_cast<std::int32_t>(messages.size()) - 1, .ttl_s = *ttl_s});
  // A last message of the assistant is the beginning of the answer.
  if (const Json& last = messages.back();
      last["role"] == "assistant" && !last.contains("tool_calls")) {
    chat["add_generation_prompt"] = false;
    chat["continue_final_message"] = true;
  }
  chat["messages"] = std::move(messages);
  return {};
}

Result<void> add_message_tools(const Json& given, Json& chat, Breakpoints& breakpoints) {
  const auto tools = given.find("tools");
  if (tools == given.end() || tools->is_null()) return {};
  Json made = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string where = "tools." + std::to_string(i);
    if (!tool.is_object()) return wrong(where, "must be an object");
    const auto type = tool.find("type");
    if (type != tool.end() && !type->is_null() && *type != "custom")
      return wrong(where + ".type", type->dump().substr(0, 64) +
                                        " is a tool of Anthropic's, only custom ones are "
                                        "supported");
    ASSIGN_OR_RETURN(const std::string name, text_of(tool, "name", where));
    const auto schema = tool.find("input_schema");
    if (schema == tool.end() || !schema->is_object())
      return wrong(where + ".input_schema", "must be an object");
    // Templates write tools before the first message, if they can be before anything.
    ASSIGN_OR_RETURN(const std::optional<double> ttl_s, marked_ttl(tool, where));
    if (ttl_s) breakpoints.push_back({.message = 0, .length = 0, .ttl_s = *ttl_s});
    Json function = {{"name", name}};
    if (const auto text = tool.find("description"); text != tool.end() && text->is_string())
      function["description"] = *text;
    function["parameters"] = *schema;
    if (const auto strict = tool.find("strict"); strict != tool.end()) function["strict"] = *strict;
    made.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!made.empty()) chat["tools"] = std::move(made);
  return {};
}

Result<void> add_tool_choice(const Json& given, Json& chat) {
  const auto choice = given.find("tool_choice");
  if (choice == given.end() || choice->is_null()) return {};
  ASSIGN_OR_RETURN(const std::string type, text_of(*choice, "type", "tool_choice"));
  if (type == "tool") {
    ASSIGN_OR_RETURN(const std::string name, text_of(*choice, "name", "tool_choice"));
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else if (type == "auto" || type == "none" || type == "any") {
    chat["tool_choice"] = type == "any" ? "required" : type;
  } else {
    return wrong("tool_choice.type", "must be auto, any, tool or none");
  }
  if (const auto off = choice->find("disable_parallel_tool_use"); off != choice->end()) {
    if (!off->is_boolean())
      return wrong("tool_choice.disable_parallel_tool_use", "must be true or false");
    chat["parallel_tool_calls"] = !off->get<bool>();
  }
  return {};
}

/// Turns the model's reasoning on or off, and says how much of it there may be.
Result<void> add_thinking(const Json& given, const ServerDefaults& defaults, Json& chat) {
  const auto thinking = given.find("thinking");
  if (thinking == given.end() || thinking->is_null()) return {};
  ASSIGN_OR_RETURN(const std::string type, text_of(*thinking, "type", "thinking"));
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return wrong("thinking.type", "must be enabled, disabled or adaptive");
  if (type == "enabled") {
    const auto budget = thinking->find("budget_tokens");
    if (budget == thinking->end() || !budget->is_number_integer() || *budget < kMinThinkingBudget)
      return wrong("thinking.budget_tokens",
                   "must be a whole number of at least " + std::to_string(kMinThinkingBudget));
    if (const auto max = given.find("max_tokens");
        max != given.end() && max->is_number_integer() && *budget >= *max)
      return wrong("thinking.budget_tokens", "must be less than max_tokens");
    if (defaults.answers.reasoning && !given.contains("thinking_token_budget"))
      chat["thinking_token_budget"] = *budget;
  }
  const auto& reasoning = defaults.answers.reasoning;
  if (reasoning && !reasoning->switch_variable.empty() &&
      !chat["chat_template_kwargs"].contains(reasoning->switch_variable))
    chat["chat_template_kwargs"][reasoning->switch_variable] = type != "disabled";
  return {};
}

/// {"type": "json_schema", "schema": ...}
Result<void> add_output_format(const Json& format, const std::string& where, Json& chat) {
  if (!format.is_object()) return wrong(where, "must be an object");
  ASSIGN_OR_RETURN(const std::string type, text_of(format, "type", where));
  const auto schema = format.find("schema");
  if (type != "json_schema") return wrong(where + ".type", "must be json_schema");
  if (schema == format.end()) return wrong(where + ".schema", "Field required");
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
  return {};
}

/// `output_config`, and `output_format`, the older name of its format.
Result<void> add_output_config(const Json& given, Json& chat) {
  if (const auto older = given.find("output_format"); older != given.end() && !older->is_null())
    RETURN_IF_ERROR(add_output_format(*older, "output_format", chat));
  const auto config = given.find("output_config");
  if (config == given.end() || config->is_null()) return {};
  if (const auto effort = config->find("effort"); effort != config->end() && !effort->is_null())
    chat["reasoning_effort"] = *effort;
  const auto format = config->find("format");
  if (format == config->end() || format->is_null()) return {};
  return add_output_format(*format, "output_config.format", chat);
}

Result<void> add_stop_sequences(const Json& given, Json& chat) {
  const auto stop = given.find("stop_sequences");
  if (stop == given.end() || stop->is_null()) return {};
  const bool are_texts =
      std::all_of(stop->begin(), stop->end(), [](const Json& each) { return each.is_string(); });
  if (!are_texts) return wrong("stop_sequences", "must be an array of strings");
  if (stop->size() > kMaxStopSequences)
    return wrong("stop_sequences", "has " + std::to_string(stop->size()) +
                                       " entries, the limit is " +
                                       std::to_string(kMaxStopSequences));
  chat["stop"] = *stop;
  return {};
}

Result<Json> read_body(std::string_view body) {
  ASSIGN_OR_RETURN(Json given, parse_json_object(body));
  RETURN_IF_ERROR(check_own_fields(given, kMessagesOwnFields));
  for (const char* name : kUnsupportedInMessages) {
    const auto found = given.find(name);
    if (found != given.end() && !found->is_null() && !found->empty())
      return Error{ErrorCode::kUnsupported, std::string(name) + " is not supported", name};
  }
  return given;
}

/// The fields that make the prompt.
Result<Json> prompt_fields(const Json& given, const ServerDefaults& defaults,
                           Breakpoints& breakpoints) {
  Json chat = Json::object();
  chat["chat_template_kwargs"] = Json::object();
  for (const char* name : {"model", "chat_template_kwargs"})
    if (const auto found = given.find(name); found != given.end() && !found->is_null())
      chat[name] = *found;
  RETURN_IF_ERROR(add_messages(given, chat, breakpoints));
  RETURN_IF_ERROR(add_message_tools(given, chat, breakpoints));
  if (breakpoints.size() > kMaxCacheBreakpoints) return too_many_breakpoints(breakpoints.size());
  RETURN_IF_ERROR(add_thinking(given, defaults, chat));
  return chat;
}

}  // namespace

Result<ChatRequest> parse_messages_request(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json given, read_body(body));
  if (!given.contains("max_tokens")) return wrong("max_tokens", "Field required");
  Breakpoints breakpoints;
  ASSIGN_OR_RETURN(Json chat, prompt_fields(given, defaults, breakpoints));
  copy_same_fields(given, kMessagesSameFields, chat);
  RETURN_IF_ERROR(add_tool_choice(given, chat));
  RETURN_IF_ERROR(add_stop_sequences(given, chat));
  RETURN_IF_ERROR(add_output_config(given, chat));
  ASSIGN_OR_RETURN(ChatRequest request,
                   parse_translated_request(chat.dump(), defaults, kMessagesNames));
  request.dialect = &kAnthropicDialect;
  request.api = &kAnthropicMessages;
  request.cache_breakpoints = std::move(breakpoints);
  return request;
}

Result<TokenizeRequest> parse_count_tokens_request(std::string_view body,
                                                   const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json given, read_body(body));
  Breakpoints breakpoints;  // nothing is cached
  ASSIGN_OR_RETURN(const Json chat, prompt_fields(given, defaults, breakpoints));
  return parse_tokenize_request(chat.dump(), defaults);
}

BodyShape messages_shape(const BodyShape& chat) {
  return shape_of_fields(kMessagesSameFields, kMessagesOwnFields, chat);
}

BodyShape count_tokens_shape(const BodyShape& chat) {
  return shape_of_fields(std::array{SameField{"model"}}, kMessagesOwnFields, chat);
}

}  // namespace troupe
