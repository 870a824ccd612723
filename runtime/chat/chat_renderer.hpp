#pragma once
// From a client's conversation to the prompt's text: choose the template, bring the messages into
// the form that it expects, render.

#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/request.hpp"
#include "runtime/chat/chat_messages.hpp"
#include "runtime/chat/chat_template.hpp"

namespace troupe {

/// What a model folder says about chats: tokenizer_config.json, special_tokens_map.json,
/// chat_template.jinja, chat_template.json, additional_chat_templates/*.jinja.
struct ChatFiles {
  std::map<std::string, std::string> templates;  ///< name ("default", "tool_use", ...) -> source
  std::map<std::string, std::string> special_tokens;
};

/// Errors, each naming the file: kCorrupt if one of them is malformed, kIo if it cannot be read.
/// Files that are absent are fine.
Result<ChatFiles> load_chat_files(const std::filesystem::path& model_folder);

struct ChatRendererOptions {
  std::string chat_template;  ///< source that replaces the model's templates; empty: the model's
  std::optional<ContentFormat> content_format;  ///< nullopt: found out from the template
  std::string image_placeholder;  ///< what stands for a picture in string content, e.g. "<image>"
  ChatTemplateLimits limits;
  std::size_t max_cached_templates = 16;
};

/// A rendered conversation and the pictures it speaks of, in prompt order.
struct RenderedChat {
  std::string text;
  std::vector<MediaPart> media;
};

/// Owns a model's templates and the latest templates that came with requests (compiled, least
/// recently used dropped first). Thread-safe. The InputProcessor calls it.
class ChatRenderer {
 public:
  /// Errors: those of ChatTemplate::compile, with the template's name.
  static Result<std::unique_ptr<ChatRenderer>> create(ChatFiles files,
                                                      const ChatRendererOptions& options);

  /// The template is the prompt's own (source, or the name of one of the model's); else, with
  /// tools, the model's "tool_use"; else "default". Errors: kInvalidArgument; no template at all is
  /// one; kAborted or kTimeout where `limits` end it.
  Result<RenderedChat> render(const ChatPrompt& prompt, const ChatClock& clock,
                              const WorkLimits& limits = {});

 private:
  using TemplatePtr = std::shared_ptr<const ChatTemplate>;
  struct CachedTemplate {
    std::string source;
    TemplatePtr compiled;
  };

  ChatRenderer(ChatFiles files, const ChatRendererOptions& options);
  Result<TemplatePtr> choose(const ChatPrompt& prompt);
  Result<TemplatePtr> compile_cached(const std::string& source);

  ChatRendererOptions options_;
  std::map<std::string, std::string> special_tokens_;
  std::map<std::string, TemplatePtr> templates_;
  std::mutex mutex_;                 // guards the two below
  std::list<CachedTemplate> cache_;  // latest first
  std::unordered_map<std::string_view, std::list<CachedTemplate>::iterator> cache_index_;
};

}  // namespace troupe
