#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/field_table.hpp"
#include "runtime/http/json_object.hpp"
#include "runtime/http/responses.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

constexpr RenamedField kResponseNames[] = {
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"verbosity", "text.verbosity"},
};
/// Fields that mean the same in both APIs, or that only this server has.
constexpr SameField kResponseSameFields[] = {
    {"model"},
    {"temperature"},
    {"top_p"},
    {"max_output_tokens", "max_completion_tokens"},
    {"stream"},
    {"parallel_tool_calls"},
    {"top_logprobs"},
    {"user"},
    {"safety_identifier"},
    {"prompt_cache_key"},
    {"prompt_cache_retention"},
    {"service_tier"},
    {"top_k"},
    {"seed"},
    {"min_p"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"repetition_penalty"},
    {"stop"},
    {"stop_token_ids"},
    {"include_stop_str_in_output"},
    {"ignore_eos"},
    {"min_tokens"},
    {"logit_bias"},
    {"allowed_token_ids"},
    {"bad_words"},
    {"skip_special_tokens"},
    {"spaces_between_special_tokens"},
    {"repetition_detection"},
    {"priority"},
    {"cache_salt"},
    {"request_id"},
    {"session_id"},
    {"data_parallel_rank"},
    {"max_queue_time_s"},
    {"max_request_time_s"},
    {"stream_interval"},
    {"chat_template"},
    {"chat_template_kwargs"},
    {"mm_processor_kwargs"},
    {"media_io_kwargs"},
    {"structured_outputs"},
    {"kv_transfer_params"},
    {"ec_transfer_params"},
    {"vllm_xargs"},
    {"thinking_token_budget"},
    {"logprob_token_ids"},
    {"include_reasoning"},
    {"mm_payload"},
    {"return_mm_kwargs"},
    {"watermarking"},
};
constexpr OwnField kResponseOwnFields[] = {
    {"input", JsonTypes::kText | JsonTypes::kArray, true},
    {"instructions", JsonTypes::kText},
    {"previous_response_id", JsonTypes::kText},
    {"store", JsonTypes::kBoolean},
    {"metadata", JsonTypes::kObject},
    {"include", JsonTypes::kArray},
    {"reasoning", JsonTypes::kObject},
    {"text", JsonTypes::kObject},
    {"tools", JsonTypes::kArray},
    {"tool_choice", JsonTypes::kText | JsonTypes::kObject},
    {"max_tool_calls", JsonTypes::kInteger},
    {"truncation", JsonTypes::kText},
    {"background", JsonTypes::kBoolean},
    {"stream_options", JsonTypes::kObject},
};
constexpr std::array kUnsupportedFields = {"conversation", "prompt", "context_management",
                                           "moderation", "previous_input_messages"};
constexpr std::size_t kMaxMetadata = 16;
constexpr std::string_view kLogprobs = "message.output_text.logprobs";
constexpr std::string_view kEncryptedReasoning = "reasoning.encrypted_content";
/// Of tools that this server refuses, and of images, whose URLs a response does not repeat.
constexpr std::string_view kIncludedNever[] = {
    "file_search_call.results",       "web_search_call.results",
    "web_search_call.action.sources", "code_interpreter_call.outputs",
    "message.input_image.image_url",  "computer_call_output.output.image_url"};
constexpr std::string_view kReasoningPrefix = "troupe:";

Error wrong_field(const std::string& field, const std::string& what) {
  return invalid_argument(field + ": " + what, field);
}
Error unsupported_field(const std::string& field, const std::string& what) {
  return {ErrorCode::kUnsupported, what + " is not supported by this server", field};
}

/// Null if it is absent or null.
const Json* field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::string> required_text(const Json& object, const char* name, const std::string& where) {
  const Json* found = field(object, name);
  if (found == nullptr || !found->is_string())
    return wrong_field(where + "." + name, "must be a string");
  return found->get<std::string>();
}

/// The texts of a string or of an array of content parts, joined.
Result<std::string> content_text(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return wrong_field(where, "must be a string or an array");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = where + "[" + std::to_string(i) + "]";
    if (!content[i].is_object()) return wrong_field(place, "must be an object");
    ASSIGN_OR_RETURN(const std::string type, required_text(content[i], "type", place));
    const bool is_refusal = type == "refusal";
    if (type != "input_text" && type != "output_text" && type != "text" &&
        type != "reasoning_text" && type != "summary_text" && !is_refusal)
      return unsupported_field(place + ".type", "content of type " + type.substr(0, 64));
    ASSIGN_OR_RETURN(const std::string piece,
                     required_text(content[i], is_refusal ? "refusal" : "text", place));
    text += piece;
  }
  return text;
}

/// The content of a user's message: a text, or where it has images its parts.
Result<Json> user_content(const Json& content, const std::string& where) {
  const auto is_image = [](const Json& part) {
    return part.is_object() && part.value("type", Json()) == "input_image";
  };
  if (!content.is_array() || std::ranges::none_of(content, is_image)) {
    ASSIGN_OR_RETURN(std::string text, content_text(content, where));
    return Json(std::move(text));
  }
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string place = where + "[" + std::to_string(i) + "]";
    if (!is_image(content[i])) {
      ASSIGN_OR_RETURN(std::string text, content_text(Json::array({content[i]}), place));
      parts.push_back({{"type", "text"}, {"text", std::move(text)}});
      continue;
    }
    if (field(content[i], "file_id") != nullptr)
      return unsupported_field(place + ".file_id", "an image by file_id");
    ASSIGN_OR_RETURN(std::string url, required_text(content[i], "image_url", place));
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
  }
  return parts;
}

/// Collects the messages of a chat; calls and reasoning belong to one message of the assistant.
class Conversation {
 public:
  Result<void> add(const Json& item, const std::string& where) {
    if (!item.is_object()) return wrong_field(where, "must be an object");
    const Json* type = field(item, "type");
    const std::string kind =
        type == nullptr || !type->is_string() ? "message" : type->get<std::string>();
    if (kind == "message") return add_message(item, where);
    if (kind == "reasoning") return add_reasoning(item, where);
    if (kind == "function_call") return add_call(item, where);
    if (kind == "function_call_output") return add_output(item, where);
    return unsupported_field(where + ".type", "an item of type " + kind.substr(0, 64));
  }
  /// The elements of a JSON array.
  [[nodiscard]] std::string finish() {
    end_turn();
    std::string text = messages_.dump();
    return text.substr(1, text.size() - 2);
  }

 private:
  Result<void> add_message(const Json& item, const std::string& where) {
    ASSIGN_OR_RETURN(std::string role, required_text(item, "role", where));
    const Json* content = field(item, "content");
    if (content == nullptr) return wrong_field(where + ".content", "Field required");
    if (role == "assistant") {
      ASSIGN_OR_RETURN(std::string text, content_text(*content, where + ".content"));
      if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
      turn_["content"] = std::move(text);
      return {};
    }
    ASSIGN_OR_RETURN(Json made, user_content(*content, where + ".content"));
    if (role == "developer") role = "system";
    if (role != "user" && role != "system")
      return wrong_field(where + ".role", "must be user, assistant, system or developer");
    end_turn();
    messages_.push_back({{"role", role}, {"content", std::move(made)}});
    return {};
  }
  Result<void> add_reasoning(const Json& item, const std::string& where) {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* content = field(item, name);
      if (content == nullptr || !text.empty()) continue;
      ASSIGN_OR_RETURN(text, content_text(*content, where + "." + name));
    }
    if (const Json* encoded = field(item, "encrypted_content");
        encoded != nullptr && text.empty() && encoded->is_string()) {
      text = encoded->get<std::string>();
      if (!text.starts_with(kReasoningPrefix))
        return wrong_field(where + ".encrypted_content", "is not of a response of this server");
      text.erase(0, kReasoningPrefix.size());
    }
    if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
    if (!text.empty()) turn_["reasoning"] = turn_["reasoning_content"] = std::move(text);
    return {};
  }
  Result<void> add_call(const Json& item, const std::string& where) {
    ASSIGN_OR_RETURN(const std::string id, required_text(item, "call_id", where));
    ASSIGN_OR_RETURN(const std::string name, required_text(item, "name", where));
    ASSIGN_OR_RETURN(const std::string arguments, required_text(item, "arguments", where));
    turn_["tool_calls"].push_back({{"id", id},
                                   {"type", "function"},
                                   {"function", {{"name", name}, {"arguments", arguments}}}});
    return {};
  }
  Result<void> add_output(const Json& item, const std::string& where) {
    ASSIGN_OR_RETURN(const std::string id, required_text(item, "call_id", where));
    const Json* output = field(item, "output");
    if (output == nullptr) return wrong_field(where + ".output", "Field required");
    ASSIGN_OR_RETURN(std::string text, content_text(*output, where + ".output"));
    end_turn();
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
    return {};
  }
  void end_turn() {
    if (turn_.empty()) return;
    Json message = {{"role", "assistant"}};
    if (!turn_.contains("content")) message["content"] = "";
    message.update(turn_);
    messages_.push_back(std::move(message));
    turn_ = Json::object();
  }

  Json messages_ = Json::array();
  Json turn_ = Json::object();  ///< of the assistant
};

Result<Json> chat_tools(const Json& tools, const std::string& name) {
  Json made = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string where = name + "[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) return wrong_field(where, "must be an object");
    ASSIGN_OR_RETURN(const std::string type, required_text(tools[i], "type", where));
    if (type != "function")
      return unsupported_field(where + ".type", "a tool of type " + type.substr(0, 64));
    Json function = Json::object();
    for (const char* name : {"name", "description", "parameters", "strict"})
      if (const Json* value = field(tools[i], name)) function[name] = *value;
    made.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return made;
}

/// {"type": "allowed_tools", "mode": ..., "tools": [{"type": "function", "name": ...}, ...]}
Result<Json> allowed_tools(const Json& choice) {
  ASSIGN_OR_RETURN(const std::string mode, required_text(choice, "mode", "tool_choice"));
  const Json* const tools = field(choice, "tools");
  if (tools == nullptr || !tools->is_array())
    return wrong_field("tool_choice.tools", "must be an array");
  ASSIGN_OR_RETURN(Json functions, chat_tools(*tools, "tool_choice.tools"));
  return Json{{"type", "allowed_tools"},
              {"allowed_tools", {{"mode", mode}, {"tools", std::move(functions)}}}};
}

Result<void> add_tools(const Json& given, Json& chat) {
  if (const Json* tools = field(given, "tools"); tools != nullptr && !tools->empty()) {
    ASSIGN_OR_RETURN(chat["tools"], chat_tools(*tools, "tools"));
  }
  const Json* choice = field(given, "tool_choice");
  if (choice == nullptr) return {};
  if (choice->is_object()) {
    ASSIGN_OR_RETURN(const std::string type, required_text(*choice, "type", "tool_choice"));
    if (type == "allowed_tools") {
      ASSIGN_OR_RETURN(chat["tool_choice"], allowed_tools(*choice));
      return {};
    }
    if (type != "function")
      return unsupported_field("tool_choice", "tool_choice of type " + type.substr(0, 64));
    ASSIGN_OR_RETURN(const std::string name, required_text(*choice, "name", "tool_choice"));
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else if (chat.contains("tools") || *choice != "auto") {
    chat["tool_choice"] = *choice;
  }
  return {};
}

/// text.format
Result<void> add_format(const Json& given, Json& chat) {
  const Json* text = field(given, "text");
  if (text == nullptr) return {};
  if (const Json* verbosity = field(*text, "verbosity")) chat["verbosity"] = *verbosity;
  const Json* format = field(*text, "format");
  if (format == nullptr) return {};
  if (!format->is_object()) return wrong_field("text.format", "must be an object");
  ASSIGN_OR_RETURN(const std::string type, required_text(*format, "type", "text.format"));
  if (type != "json_schema") {
    chat["response_format"] = {{"type", type}};
    return {};
  }
  Json described = Json::object();
  for (const char* name : {"name", "description", "schema", "strict"})
    if (const Json* value = field(*format, name)) described[name] = *value;
  chat["response_format"] = {{"type", type}, {"json_schema", std::move(described)}};
  return {};
}

/// include and top_logprobs
Result<void> add_included(const Json& given, Json& chat, ResponseSettings& settings) {
  const Json* include = field(given, "include");
  bool has_logprobs = false;
  for (const Json& each : include == nullptr ? Json::array() : *include) {
    const auto is = [&](std::string_view name) { return each == name; };
    has_logprobs |= is(kLogprobs);
    settings.encrypts_reasoning |= is(kEncryptedReasoning);
    if (!is(kLogprobs) && !is(kEncryptedReasoning) && std::ranges::none_of(kIncludedNever, is))
      return wrong_field("include", each.dump().substr(0, 64) + " is not known");
  }
  if (const Json* top = field(given, "top_logprobs")) has_logprobs |= *top != 0;
  if (has_logprobs) chat["logprobs"] = true;
  return {};
}

Result<void> add_reasoning(const Json& given, Json& chat) {
  const Json* reasoning = field(given, "reasoning");
  if (reasoning == nullptr) return {};
  if (const Json* effort = field(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  return {};
}

/// The object with these members, which a request may leave out and a response has.
Json with_nulls(Json object, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!object.contains(name)) object[name] = nullptr;
  return object;
}

/// What the response repeats of its request, with the API's defaults.
Result<std::string> echoed(const Json& given) {
  const auto or_null = [&](const char* name) {
    const Json* found = field(given, name);
    return found == nullptr ? Json() : *found;
  };
  const auto value_or = [&](const char* name, Json otherwise) {
    const Json* found = field(given, name);
    return found == nullptr ? otherwise : *found;
  };
  Json echo = Json::object();
  echo["instructions"] = or_null("instructions");
  echo["max_output_tokens"] = or_null("max_output_tokens");
  echo["max_tool_calls"] = or_null("max_tool_calls");
  echo["metadata"] = value_or("metadata", Json::object());
  if (echo["metadata"].size() > kMaxMetadata)
    return wrong_field("metadata",
                       "must be an object of at most " + std::to_string(kMaxMetadata) + " fields");
  echo["parallel_tool_calls"] = value_or("parallel_tool_calls", true);
  echo["previous_response_id"] = or_null("previous_response_id");
  echo["prompt_cache_key"] = or_null("prompt_cache_key");
  echo["reasoning"] = with_nulls(value_or("reasoning", Json::object()), {"effort", "summary"});
  echo["safety_identifier"] = or_null("safety_identifier");
  echo["service_tier"] = "default";
  echo["store"] = value_or("store", true);
  const Json* text = field(given, "text");
  echo["text"] =
      text != nullptr && text->contains("format") ? *text : Json{{"format", {{"type", "text"}}}};
  if (Json& format = echo["text"]["format"];
      format.is_object() && format.value("type", Json()) == "json_schema") {
    format = with_nulls(format, {"description"});
    if (field(format, "strict") == nullptr) format["strict"] = false;
  }
  echo["tool_choice"] = value_or("tool_choice", "auto");
  echo["tools"] = value_or("tools", Json::array());
  for (Json& tool : echo["tools"]) tool = with_nulls(tool, {"description", "parameters", "strict"});
  echo["top_logprobs"] = value_or("top_logprobs", 0);
  echo["truncation"] = value_or("truncation", "disabled");
  echo["user"] = or_null("user");
  const std::string members = echo.dump();
  return members.substr(1, members.size() - 2);
}

Result<void> check_choices(const Json& given) {
  for (const char* name : kUnsupportedFields)
    if (field(given, name) != nullptr) return unsupported_field(name, name);
  if (const Json* messages = field(given, "enable_response_messages");
      messages != nullptr && *messages != false)
    return unsupported_field("enable_response_messages", "enable_response_messages");
  const Json* truncation = field(given, "truncation");
  if (truncation != nullptr && *truncation != "disabled" && *truncation != "auto")
    return wrong_field("truncation", "must be auto or disabled");
  return {};
}

}  // namespace

Result<ResponsesRequest> parse_responses_request(std::string_view body) {
  ASSIGN_OR_RETURN(const Json given, parse_json_object(body));
  RETURN_IF_ERROR(check_own_fields(given, kResponseOwnFields));
  RETURN_IF_ERROR(check_choices(given));
  ResponsesRequest request;
  Json chat = Json::object();
  copy_same_fields(given, kResponseSameFields, chat);
  RETURN_IF_ERROR(add_tools(given, chat));
  RETURN_IF_ERROR(add_format(given, chat));
  RETURN_IF_ERROR(add_included(given, chat, request.settings));
  RETURN_IF_ERROR(add_reasoning(given, chat));
  request.chat_fields = chat.dump();
  request.chat_fields = request.chat_fields.substr(1, request.chat_fields.size() - 2);
  const Json* instructions = field(given, "instructions");
  if (instructions != nullptr && *instructions != "")
    request.instructions = Json{{"role", "system"}, {"content", *instructions}}.dump();
  if (const Json* store = field(given, "store")) request.store = store->get<bool>();
  if (const Json* background = field(given, "background"))
    request.settings.in_background = background->get<bool>();
  if (request.settings.in_background && !request.store)
    return wrong_field("background", "needs store to be true");
  if (const Json* truncation = field(given, "truncation"))
    request.may_truncate = *truncation == "auto";
  if (const Json* previous = field(given, "previous_response_id"))
    request.previous_id = previous->get<std::string>();
  const Json& input = given["input"];
  Json items = input;
  if (input.is_string())
    items = Json::array({{{"type", "message"}, {"role", "user"}, {"content", input}}});
  if (items.empty()) return wrong_field("input", "must not be empty");
  Conversation conversation;
  for (std::size_t i = 0; i < items.size(); ++i)
    RETURN_IF_ERROR(conversation.add(items[i], "input[" + std::to_string(i) + "]"));
  request.messages = conversation.finish();
  request.settings.input = items.dump();
  ASSIGN_OR_RETURN(request.settings.fields, echoed(given));
  return request;
}

Result<ChatRequest> chat_of(ResponsesRequest request, const std::string& previous,
                            const ServerDefaults& defaults) {
  const auto join = [](const std::string& one, const std::string& other) {
    return one + (one.empty() || other.empty() ? "" : ",") + other;
  };
  request.settings.conversation = join(previous, request.messages);
  const std::string messages = join(request.instructions, request.settings.conversation);
  ASSIGN_OR_RETURN(
      ChatRequest chat,
      parse_translated_request("{" + join(request.chat_fields, "\"messages\":[" + messages) + "]}",
                               defaults, kResponseNames));
  chat.dialect = &kResponsesDialect;
  chat.api = &kResponses;
  chat.response = std::make_shared<const ResponseSettings>(std::move(request.settings));
  return chat;
}

std::vector<std::string> split_messages(const std::string& elements) {
  std::vector<std::string> messages;
  for (const Json& each : Json::parse("[" + elements + "]", nullptr, false))
    messages.push_back(each.dump());
  return messages;
}

bool is_of_user(const std::string& message) {
  return Json::parse(message, nullptr, false).value("role", "") == "user";
}

std::string encoded_reasoning(std::string_view text) {
  return std::string(kReasoningPrefix).append(text);
}

BodyShape responses_shape(const BodyShape& chat) {
  return shape_of_fields(kResponseSameFields, kResponseOwnFields, chat);
}

}  // namespace troupe
