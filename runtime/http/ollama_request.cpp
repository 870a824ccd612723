#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/field_table.hpp"
#include "runtime/http/json_object.hpp"
#include "runtime/http/ollama.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

constexpr RenamedField kOllamaNames[] = {
    {"response_format", "format"},
    {"reasoning_effort", "think"},
    {"repetition_penalty", "repeat_penalty"},
};
constexpr std::array kOptions = {
    std::pair("temperature", "temperature"),
    std::pair("top_k", "top_k"),
    std::pair("top_p", "top_p"),
    std::pair("min_p", "min_p"),
    std::pair("seed", "seed"),
    std::pair("stop", "stop"),
    std::pair("repeat_penalty", "repetition_penalty"),
    std::pair("presence_penalty", "presence_penalty"),
    std::pair("frequency_penalty", "frequency_penalty"),
};
/// Options of the machine, which change no answer; the context is always the server's.
constexpr std::array kIgnoredOptions = {"num_ctx",    "num_keep",  "num_batch", "num_gpu",
                                        "main_gpu",   "use_mmap",  "numa",      "low_vram",
                                        "vocab_only", "use_mlock", "num_thread"};
/// Options that would change the answer, unless they have this value.
constexpr std::array kNeutralOptions = {std::pair("mirostat", 0.0), std::pair("tfs_z", 1.0),
                                        std::pair("typical_p", 1.0),
                                        std::pair("repeat_last_n", -1.0)};
constexpr OwnField kOllamaFields[] = {
    {"model", JsonTypes::kText},
    {"stream", JsonTypes::kBoolean},
    {"options", JsonTypes::kObject},
    {"format", JsonTypes::kText | JsonTypes::kObject},
    {"think", JsonTypes::kText | JsonTypes::kBoolean},
    {"keep_alive", JsonTypes::kText | JsonTypes::kNumber},
};
constexpr OwnField kOllamaChatFields[] = {
    {"messages", JsonTypes::kArray, true},
    {"tools", JsonTypes::kArray},
};
constexpr OwnField kOllamaGenerateFields[] = {
    {"prompt", JsonTypes::kText, true},
    {"system", JsonTypes::kText},
    {"images", JsonTypes::kArray},
};
/// Fields that would change the answer.
constexpr std::array kRefusedFields = {"suffix", "template", "context", "raw"};

Error ollama_error(const std::string& field, const std::string& what) {
  return invalid_argument(field + ": " + what, field);
}
Error not_offered(const std::string& field) {
  return {ErrorCode::kUnsupported, field + " is not supported by this server", field};
}

const Json* value_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool is_unset(const Json& value) {
  return value == false || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// `content` behind the images of `given`, a list of base64 texts; without any as it is.
Result<Json> with_images(const Json& given, const std::string& where, Json content) {
  const Json* images = value_of(given, "images");
  if (images == nullptr || is_unset(*images)) return content;
  if (!images->is_array()) return ollama_error(where + "images", "must be an array");
  Json parts = Json::array();
  for (const Json& image : *images) {
    if (!image.is_string()) return ollama_error(where + "images", "must be base64 texts");
    parts.push_back(
        {{"type", "image_url"},
         {"image_url", {{"url", "data:image/*;base64," + image.get_ref<const std::string&>()}}}});
  }
  if (content.is_string() && content != "") parts.push_back({{"type", "text"}, {"text", content}});
  return parts;
}

Result<void> add_options(const Json& given, Json& chat) {
  const Json* options = value_of(given, "options");
  if (options == nullptr) return {};
  for (const auto& [name, value] : options->items()) {
    const auto has_name = [&name = name](const auto& pair) { return name == pair.first; };
    if (const auto same = std::find_if(kOptions.begin(), kOptions.end(), has_name);
        same != kOptions.end()) {
      chat[same->second] = value;
    } else if (name == "num_predict") {
      // -1: to the end of the answer, -2: to that of the context.
      if (!value.is_number_integer()) return ollama_error("num_predict", "must be a whole number");
      if (value > 0) chat["max_tokens"] = value;
    } else if (const auto neutral =
                   std::find_if(kNeutralOptions.begin(), kNeutralOptions.end(), has_name);
               neutral != kNeutralOptions.end()) {
      if (value != neutral->second) return not_offered("options." + name);
    } else if (std::find(kIgnoredOptions.begin(), kIgnoredOptions.end(), name) ==
               kIgnoredOptions.end()) {
      return not_offered("options." + name.substr(0, 64));
    }
  }
  return {};
}

/// `format` and `think`, and the fields that have other names.
Result<Json> shared_fields(const Json& given, const ServerDefaults& defaults) {
  RETURN_IF_ERROR(check_own_fields(given, kOllamaFields));
  Json chat = Json::object();
  for (const char* name : kRefusedFields) {
    const Json* value = value_of(given, name);
    if (value != nullptr && !is_unset(*value)) return not_offered(name);
  }
  if (const Json* model = value_of(given, "model"))
    chat["model"] = std::string(without_latest(model->get_ref<const std::string&>()));
  const Json* stream = value_of(given, "stream");
  chat["stream"] = stream == nullptr ? Json(true) : *stream;
  RETURN_IF_ERROR(add_options(given, chat));
  if (const Json* format = value_of(given, "format"); format != nullptr && !is_unset(*format)) {
    if (*format == "json") {
      chat["response_format"] = {{"type", "json_object"}};
    } else if (format->is_object()) {
      chat["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"name", "format"}, {"schema", *format}}}};
    } else {
      return ollama_error("format", "must be \"json\" or a JSON Schema");
    }
  }
  if (const Json* think = value_of(given, "think")) {
    const auto& reasoning = defaults.answers.reasoning;
    if (reasoning && !reasoning->switch_variable.empty())
      chat["chat_template_kwargs"] = {{std::string(reasoning->switch_variable), *think != false}};
    if (think->is_string()) chat["reasoning_effort"] = *think;
    if (*think == false) chat["include_reasoning"] = false;
  }
  return chat;
}

/// OpenAI's form of a message: arguments are texts, calls have ids.
Result<Json> chat_message(const Json& given, const std::string& where, std::size_t number) {
  if (!given.is_object()) return ollama_error(where, "must be an object");
  Json message = Json::object();
  for (const char* name : {"role", "content", "tool_call_id"})
    if (const Json* value = value_of(given, name)) message[name] = *value;
  ASSIGN_OR_RETURN(message["content"],
                   with_images(given, where + ".", message.value("content", Json())));
  if (const Json* name = value_of(given, "tool_name")) message["name"] = *name;
  if (const Json* thinking = value_of(given, "thinking"); thinking && !is_unset(*thinking))
    message["reasoning"] = message["reasoning_content"] = *thinking;
  const Json* calls = value_of(given, "tool_calls");
  if (calls == nullptr || is_unset(*calls)) return message;
  if (!calls->is_array()) return ollama_error(where + ".tool_calls", "must be an array");
  Json made = Json::array();
  for (const Json& call : *calls) {
    const Json* function = call.is_object() ? value_of(call, "function") : nullptr;
    if (function == nullptr || !function->is_object() || value_of(*function, "name") == nullptr)
      return ollama_error(where + ".tool_calls", "must have functions with a name");
    const Json arguments = function->value("arguments", Json::object());
    made.push_back({{"id", "call_" + std::to_string(number) + "_" + std::to_string(made.size())},
                    {"type", "function"},
                    {"function",
                     {{"name", (*function)["name"]},
                      {"arguments", arguments.is_string() ? arguments : Json(arguments.dump())}}}});
  }
  message["tool_calls"] = std::move(made);
  return message;
}

Result<ChatRequest> as_ollama(const Json& chat, const ServerDefaults& defaults,
                              const ChatApi& api) {
  ASSIGN_OR_RETURN(ChatRequest request,
                   parse_translated_request(chat.dump(), defaults, kOllamaNames));
  request.dialect = &kOllamaDialect;
  request.api = &api;
  return request;
}

}  // namespace

std::string_view without_latest(std::string_view model) noexcept {
  constexpr std::string_view kLatest = ":latest";
  if (model.ends_with(kLatest)) model.remove_suffix(kLatest.size());
  return model;
}

Result<ChatRequest> parse_ollama_chat(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json given, parse_json_object(body));
  RETURN_IF_ERROR(check_own_fields(given, kOllamaChatFields));
  ASSIGN_OR_RETURN(Json chat, shared_fields(given, defaults));
  const Json* messages = value_of(given, "messages");
  if (messages->empty()) return ollama_error("messages", "must not be empty");
  Json made = Json::array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Json message,
                     chat_message((*messages)[i], "messages[" + std::to_string(i) + "]", i));
    made.push_back(std::move(message));
  }
  chat["messages"] = std::move(made);
  if (const Json* tools = value_of(given, "tools"); tools != nullptr && !is_unset(*tools))
    chat["tools"] = *tools;
  return as_ollama(chat, defaults, kOllamaChat);
}

Result<ChatRequest> parse_ollama_generate(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const Json given, parse_json_object(body));
  RETURN_IF_ERROR(check_own_fields(given, kOllamaGenerateFields));
  ASSIGN_OR_RETURN(Json chat, shared_fields(given, defaults));
  const Json* prompt = value_of(given, "prompt");
  if (*prompt == "") return ollama_error("prompt", "must not be empty");
  Json messages = Json::array();
  if (const Json* system = value_of(given, "system"); system != nullptr && !is_unset(*system))
    messages.push_back({{"role", "system"}, {"content", *system}});
  ASSIGN_OR_RETURN(Json content, with_images(given, "", *prompt));
  messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  chat["messages"] = std::move(messages);
  return as_ollama(chat, defaults, kOllamaGenerate);
}

BodyShape ollama_chat_shape(const BodyShape& chat) {
  std::vector<OwnField> fields(std::begin(kOllamaFields), std::end(kOllamaFields));
  fields.insert(fields.end(), std::begin(kOllamaChatFields), std::end(kOllamaChatFields));
  return shape_of_fields({}, fields, chat);
}

BodyShape ollama_generate_shape(const BodyShape& chat) {
  std::vector<OwnField> fields(std::begin(kOllamaFields), std::end(kOllamaFields));
  fields.insert(fields.end(), std::begin(kOllamaGenerateFields), std::end(kOllamaGenerateFields));
  return shape_of_fields({}, fields, chat);
}

}  // namespace troupe
