#include "runtime/chat/chat_messages.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

/// One content part, understood: text, or media.
struct Part {
  bool is_media = false;
  std::string text;
  MediaPart media;
};

std::string text_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// {"image_url": {"url": ...}}, {"image_url": "..."} or {"image_url": null} with a uuid.
std::string media_url(const Json& part, const char* name) {
  const auto found = part.find(name);
  if (found == part.end()) return {};
  return found->is_object() ? text_field(*found, "url") : text_field(part, name);
}

std::string audio_url(const Json& part) {
  const auto audio = part.find("input_audio");
  if (audio == part.end() || !audio->is_object()) return {};
  return "data:audio/" + text_field(*audio, "format") + ";base64," + text_field(*audio, "data");
}

Result<Part> read_part(const Json& part) {
  if (part.is_string()) return Part{false, part.get<std::string>(), {}};
  if (!part.is_object()) {
    return invalid_argument("a content part must be an object or a string", "messages");
  }
  std::string type = text_field(part, "type");
  if (type.empty()) {
    for (const char* name : {"text", "image_url", "input_audio", "audio_url", "video_url"}) {
      if (part.contains(name)) type = name;
    }
  }
  if (type == "text" || type == "input_text" || type == "output_text") {
    return Part{false, text_field(part, "text"), {}};
  }
  if (type == "refusal" || type == "thinking")
    return Part{false, text_field(part, type.c_str()), {}};
  const std::string uuid = text_field(part, "uuid");
  if (type == "image_url" || type == "input_image" || type == "image") {
    const std::string url = media_url(part, type == "image" ? "image" : "image_url");
    return Part{true, {}, {"image", url, uuid}};
  }
  if (type == "input_audio") return Part{true, {}, {"audio", audio_url(part), uuid}};
  if (type == "audio_url") return Part{true, {}, {"audio", media_url(part, "audio_url"), uuid}};
  if (type == "video_url") return Part{true, {}, {"video", media_url(part, "video_url"), uuid}};
  return invalid_argument("unknown content part type '" + type + "'", "messages");
}

std::size_t num_occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t i = text.find(part); i != std::string::npos;
       i = text.find(part, i + part.size())) {
    ++count;
  }
  return count;
}

/// All parts as one string: the placeholders that the text lacks, then the texts, a line each.
std::string join_parts(const std::vector<Part>& parts, const std::string& placeholder) {
  std::string text;
  bool is_first = true;
  std::size_t num_images = 0;
  for (const Part& part : parts) {
    if (part.is_media) {
      num_images += part.media.modality == "image";
      continue;
    }
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

Json typed_parts(const std::vector<Part>& parts) {
  Json list = Json::array();
  for (const Part& part : parts) {
    if (part.is_media) {
      list.push_back({{"type", part.media.modality}});
    } else {
      list.push_back({{"type", "text"}, {"text", part.text}});
    }
  }
  return list;
}

class Normalizer {
 public:
  explicit Normalizer(const NormalizeOptions& options) : options_(options) {}

  Result<NormalizedMessages> run(const std::string& messages_json) {
    Json messages = parse_bounded_json<Json>(messages_json);
    if (!messages.is_array()) return invalid_argument("messages must be an array", "messages");
    Json normalized = Json::array();
    for (Json& message : messages) {
      if (!message.is_object()) return invalid_argument("a message must be an object", "messages");
      if (text_field(message, "role").empty()) {
        return invalid_argument("a message has no role", "messages");
      }
      const bool was_developer = rename_developer(message);
      RETURN_IF_ERROR(normalize_content(message));
      normalize_tool_calls(message);
      if (was_developer && merge_into_system(message, normalized)) continue;
      normalized.push_back(std::move(message));
    }
    return NormalizedMessages{normalized.dump(-1, ' ', false, Json::error_handler_t::replace),
                              std::move(media_)};
  }

 private:
  bool rename_developer(Json& message) const {
    if (options_.keep_developer_role || message["role"] != "developer") return false;
    message["role"] = "system";
    return true;
  }

  Result<void> normalize_content(Json& message) {
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) return {};
    if (content->is_string()) {
      if (options_.content_format == ContentFormat::kOpenAi && message["role"] != "tool") {
        *content = typed_parts({Part{false, content->get<std::string>(), {}}});
      }
      return {};
    }
    if (!content->is_array()) {
      return invalid_argument("a message's content must be a string or an array", "messages");
    }
    std::vector<Part> parts;
    bool has_media = false;
    for (const Json& item : *content) {
      ASSIGN_OR_RETURN(Part part, read_part(item));
      has_media |= part.is_media;
      if (part.is_media) media_.push_back(part.media);
      parts.push_back(std::move(part));
    }
    const bool is_plain_tool = message["role"] == "tool" && !has_media;
    if (options_.content_format == ContentFormat::kOpenAi && !is_plain_tool) {
      *content = typed_parts(parts);
    } else {
      *content = join_parts(parts, options_.image_placeholder);
    }
    return {};
  }

  static void normalize_tool_calls(Json& message) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) return;
    if (calls->is_null() || calls->empty()) {
      message.erase("tool_calls");
      return;
    }
    if (!calls->is_array()) return;
    for (Json& call : *calls) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
        continue;
      Json& function = call["function"];
      const auto arguments = function.find("arguments");
      if (arguments == function.end() || arguments->is_null()) {
        function["arguments"] = Json::object();
      } else if (arguments->is_string()) {
        Json parsed = parse_bounded_json<Json>(arguments->get_ref<const std::string&>());
        *arguments = parsed.is_object() ? std::move(parsed) : Json::object();
      }
    }
  }

  /// A developer's text joins the system message before it, with a blank line between.
  static bool merge_into_system(const Json& message, Json& normalized) {
    if (normalized.size() != 1 || normalized.back()["role"] != "system") return false;
    Json& before = normalized.back()["content"];
    const Json content = message.value("content", Json());
    if (before.is_string() && content.is_string()) {
      before = before.get<std::string>() + "\n\n" + content.get<std::string>();
      return true;
    }
    if (!before.is_array() || !content.is_array() || before.empty()) return false;
    for (Json part : content) {
      if (part == content.front() && part.contains("text")) {
        part["text"] = "\n\n" + part["text"].get<std::string>();
      }
      before.push_back(std::move(part));
    }
    return true;
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
