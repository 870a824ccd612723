#include "runtime/chat/chat_messages.hpp"

#include <optional>

#include "runtime/base/json_depth.hpp"
#include "runtime/chat/jinja/operations.hpp"

namespace troupe {
namespace {

using jinja::Dict;
using jinja::Value;

/// The text as a value; nullopt if it is not JSON, or nested deeper than kMaxJsonDepth.
std::optional<Value> parse(std::string_view json) {
  try {
    return jinja::parse_json(json, kMaxJsonDepth);
  } catch (const jinja::TemplateError&) {
    return std::nullopt;
  }
}

/// One parsed content part: text, or media.
struct Part {
  bool is_media = false;
  std::string text;
  MediaPart media;
};

const std::string* text_of(const Dict& object, std::string_view name) {
  const Value* found = object.find(name);
  return found ? found->string() : nullptr;
}
std::string text_field(const Dict& object, std::string_view name) {
  const std::string* text = text_of(object, name);
  return text ? *text : std::string();
}
bool is_role(const Dict& message, std::string_view role) {
  const std::string* text = text_of(message, "role");
  return text && *text == role;
}

/// {"image_url": {"url": ...}}, {"image_url": "..."} or {"image_url": null} with a uuid.
std::string media_url(const Dict& part, std::string_view name) {
  const Value* found = part.find(name);
  if (!found) return {};
  return found->dict() ? text_field(*found->dict(), "url") : text_field(part, name);
}

std::string audio_url(const Dict& part) {
  const Value* audio = part.find("input_audio");
  if (!audio || !audio->dict()) return {};
  return "data:audio/" + text_field(*audio->dict(), "format") + ";base64," +
         text_field(*audio->dict(), "data");
}

Result<Part> read_part(const Value& value) {
  if (const std::string* text = value.string()) return Part{false, *text, {}};
  if (!value.dict()) {
    return invalid_argument("a content part must be an object or a string", "messages");
  }
  const Dict& part = *value.dict();
  std::string type = text_field(part, "type");
  if (type.empty()) {
    for (const char* name : {"text", "image_url", "input_audio", "audio_url", "video_url"}) {
      if (part.find(name)) type = name;
    }
  }
  if (type == "text" || type == "input_text" || type == "output_text") {
    return Part{false, text_field(part, "text"), {}};
  }
  if (type == "refusal" || type == "thinking") return Part{false, text_field(part, type), {}};
  const std::string uuid = text_field(part, "uuid");
  if (type == "image_url" || type == "input_image" || type == "image") {
    const std::string url = media_url(part, type == "image" ? "image" : "image_url");
    return Part{true, {}, {"image", url, uuid}};
  }
  if (type == "input_audio") return Part{true, {}, {"audio", audio_url(part), uuid}};
  if (type == "audio_url") return Part{true, {}, {"audio", media_url(part, "audio_url"), uuid}};
  if (type == "video_url") return Part{true, {}, {"video", media_url(part, "video_url"), uuid}};
  return invalid_argument("unknown content part type '" + type.substr(0, 100) + "'", "messages");
}

std::size_t num_occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t i = text.find(part); i != std::string::npos;
       i = text.find(part, i + part.size())) {
    ++count;
  }
  return count;
}

/// All parts as one string: the placeholders missing in the text, then the non-empty texts, a line
/// each.
std::string join_parts(const std::vector<Part>& parts, const std::string& placeholder) {
  std::string text;
  bool is_first = true;
  std::size_t num_images = 0;
  for (const Part& part : parts) {
    if (part.is_media) {
      num_images += part.media.modality == "image";
      continue;
    }
    if (part.text.empty()) continue;
    if (!std::exchange(is_first, false)) text += '\n';
    text += part.text;
  }
  if (placeholder.empty()) return text;
  std::string missing;
  for (std::size_t i = num_occurrences(text, placeholder); i < num_images; ++i) {
    missing += (missing.empty() ? "" : "\n") + placeholder;
  }
  if (missing.empty()) return text;
  return text.empty() ? missing : missing + "\n" + text;
}

Value text_part(Value text) {
  Dict part;
  part.set("type", Value("text"));
  part.set("text", std::move(text));
  return Value::dict(std::move(part));
}

Value typed_parts(const std::vector<Part>& parts) {
  std::vector<Value> list;
  for (const Part& part : parts) {
    if (part.is_media) {
      Dict media;
      media.set("type", Value(part.media.modality));
      list.push_back(Value::dict(std::move(media)));
    } else {
      list.push_back(text_part(Value(part.text)));
    }
  }
  return Value::list(std::move(list));
}

/// The object with one field added or replaced.
Value with_field(const Dict& object, std::string_view name, Value value) {
  Dict changed = object;
  changed.set(name, std::move(value));
  return Value::dict(std::move(changed));
}

/// A tool call whose function.arguments are an object, or text that is none.
Value with_object_arguments(const Value& call) {
  const Value* function = call.dict() ? call.dict()->find("function") : nullptr;
  if (!function || !function->dict()) return call;
  const Value* arguments = function->dict()->find("arguments");
  Value object = Value::dict({});
  if (arguments && !arguments->is_none()) {
    if (!arguments->is_string()) return call;
    std::optional<Value> parsed = parse(*arguments->string());
    if (parsed && parsed->dict()) {
      object = *std::move(parsed);
    } else if (!arguments->string()->empty()) {
      return call;
    }
  }
  return with_field(*call.dict(), "function",
                    with_field(*function->dict(), "arguments", std::move(object)));
}

/// The system message at the head of a conversation, into which developer messages are merged.
class LeadingSystem {
 public:
  /// False if this message's content cannot be merged with the previous content.
  bool join(const Value& content) {
    if (const std::string* text = content.string(); text && is_text_) {
      text_.append("\n\n").append(*text);
      return true;
    }
    const std::vector<Value>* parts = content.items();
    if (!parts || is_text_ || parts_.empty()) return false;
    for (std::size_t i = 0; i < parts->size(); ++i) {
      const Value& part = (*parts)[i];
      const std::string* text = part.dict() ? text_of(*part.dict(), "text") : nullptr;
      parts_.push_back(i == 0 && text ? with_field(*part.dict(), "text", Value("\n\n" + *text))
                                      : part);
    }
    return true;
  }

  /// Pre: the message has content.
  explicit LeadingSystem(Dict message) : message_(std::move(message)) {
    const Value& content = *message_.find("content");
    if (const std::string* text = content.string()) {
      is_text_ = true;
      text_ = *text;
    } else {
      parts_ = *content.items();
    }
  }
  [[nodiscard]] Value take() {
    message_.set("content", is_text_ ? Value(std::move(text_)) : Value::list(std::move(parts_)));
    return Value::dict(std::move(message_));
  }

 private:
  Dict message_;
  bool is_text_ = false;
  std::string text_;
  std::vector<Value> parts_;
};

class Normalizer {
 public:
  explicit Normalizer(const NormalizeOptions& options) : options_(options) {}

  Result<NormalizedMessages> run(const std::string& messages_json) {
    const std::optional<Value> messages = parse(messages_json);
    if (!messages || !messages->is_list()) {
      return invalid_argument("messages must be an array", "messages");
    }
    std::vector<Value> normalized;
    std::optional<LeadingSystem> system;
    for (const Value& item : *messages->items()) {
      if (!item.dict()) return invalid_argument("a message must be an object", "messages");
      const Dict& given = *item.dict();
      if (text_field(given, "role").empty()) {
        return invalid_argument("a message has no role", "messages");
      }
      const bool was_developer = !options_.keep_developer_role && is_role(given, "developer");
      ASSIGN_OR_RETURN(Dict message, normalize(given, was_developer));
      if (system && was_developer && system->join(*message.find("content"))) continue;
      if (system) normalized.push_back(std::exchange(system, std::nullopt)->take());
      if (normalized.empty() && is_role(message, "system")) {
        system.emplace(std::move(message));
      } else {
        normalized.push_back(Value::dict(std::move(message)));
      }
    }
    if (system) normalized.push_back(system->take());
    return NormalizedMessages{jinja::dump_json(Value::list(std::move(normalized))),
                              std::move(media_)};
  }

 private:
  /// Every message gets a content; missing content is treated as no parts.
  Result<Dict> normalize(const Dict& given, bool was_developer) {
    Dict message;
    const Value* content = given.find("content");
    for (const auto& [key, value] : given.entries()) {
      const std::string& name = *key.string();
      if (name == "role") {
        message.set(*key.get_if<jinja::Text>(), was_developer ? Value("system") : value);
        if (!content) message.set("content", no_content(given));
      } else if (name == "content") {
        ASSIGN_OR_RETURN(Value normalized, normalize_content(value, given));
        message.set(*key.get_if<jinja::Text>(), std::move(normalized));
      } else if (name != "tool_calls") {
        message.set(*key.get_if<jinja::Text>(), value);
      } else if (const std::vector<Value>* calls = value.items()) {
        std::vector<Value> normalized;
        for (const Value& call : *calls) normalized.push_back(with_object_arguments(call));
        if (!calls->empty()) message.set(name, Value::list(std::move(normalized)));
      } else if (!value.is_none() && jinja::is_true(value)) {
        message.set(name, value);
      }
    }
    return message;
  }

  [[nodiscard]] bool wants_parts(const Dict& message) const {
    return options_.content_format == ContentFormat::kOpenAi && !is_role(message, "tool");
  }
  [[nodiscard]] Value no_content(const Dict& message) const {
    return wants_parts(message) ? Value::list({}) : Value("");
  }

  Result<Value> normalize_content(const Value& content, const Dict& message) {
    if (content.is_none()) return no_content(message);
    if (content.is_string()) {
      return wants_parts(message) ? Value::list({text_part(content)}) : content;
    }
    if (!content.is_list()) {
      return invalid_argument("a message's content must be a string or an array", "messages");
    }
    std::vector<Part> parts;
    bool has_media = false;
    for (const Value& item : *content.items()) {
      ASSIGN_OR_RETURN(Part part, read_part(item));
      has_media |= part.is_media;
      if (part.is_media) media_.push_back(part.media);
      parts.push_back(std::move(part));
    }
    const bool keeps_parts = options_.content_format == ContentFormat::kOpenAi &&
                             (has_media || !is_role(message, "tool"));
    return keeps_parts ? typed_parts(parts) : Value(join_parts(parts, options_.image_placeholder));
  }

  const NormalizeOptions& options_;
  std::vector<MediaPart> media_;
};

}  // namespace

Result<NormalizedMessages> normalize_messages(const std::string& messages_json,
                                              const NormalizeOptions& options) {
  return Normalizer(options).run(messages_json);
}

}  // namespace troupe
