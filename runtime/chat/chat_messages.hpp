#pragma once
// Normalizes the messages of a chat request to the form that a model's template expects.

#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/chat/chat_template.hpp"

namespace troupe {

/// A part of a message that is not text.
struct MediaPart {
  std::string modality;  ///< "image", "audio", "video"
  std::string url;       ///< http(s) or data URL; input_audio becomes a data URL; may be empty
  std::string uuid;      ///< client-provided name of the item, may be empty
};

struct NormalizedMessages {
  std::string messages_json;
  std::vector<MediaPart> media;  ///< in the order of the messages
};

struct NormalizeOptions {
  ContentFormat content_format = ContentFormat::kString;
  bool keep_developer_role = false;  ///< the template supports it; otherwise it becomes "system"
  std::string image_placeholder;     ///< put before the text of a message in string content
};

/// - null or absent content is treated as no parts: "" in string content, [] in openai content;
/// - string content: non-empty text parts joined by newlines, after the placeholders of images;
/// - openai content: a list of {"type": "text", "text"}, {"type": "image"} etc.;
/// - developer messages become system messages, merged with the system messages they follow;
/// - a tool message's list of texts is joined by newlines;
/// - tool_calls[].function.arguments: JSON text becomes an object (empty: {}; text that is no
/// object,
///   or deeper than kMaxJsonDepth, stays as it is); an empty tool_calls is removed.
/// Errors: kInvalidArgument, param "messages", for a message that is not an object, has no role, or
/// has a part of unknown type.
Result<NormalizedMessages> normalize_messages(const std::string& messages_json,
                                              const NormalizeOptions& options);

}  // namespace troupe
