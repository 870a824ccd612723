#pragma once
// From a conversation to the prompt text: choose the template, normalize the messages for it,
// render.

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

/// The chat settings of a model folder: tokenizer_config.json, special_tokens_map.json,
/// chat_template.jinja, chat_template.json, additional_chat_templates/*.jinja.
struct ChatFiles {
  std::map<std::string, std::string> templates;  ///< name ("default", "tool_use", ...) -> source
  std::map<std::string, std::string> special_tokens;
};

/// Errors, each naming the file: kCorrupt (malformed), kIo (not readable). Files may be absent.
Result<ChatFiles> load_chat_files(const std::filesystem::path& model_folder);

struct ChatRendererOptions {
  std::string chat_template;  ///< replaces the model's templates; empty: the model's
  std::optional<ContentFormat> content_format;  ///< nullopt: detected from the template
  std::string image_placeholder;  ///< represents an image in string content, e.g. "<image>"
  ChatTemplateLimits limits;
  std::size_t max_cached_templates = 16;
};

/// A rendered conversation and its images, in prompt order.
struct RenderedChat {
  std::string text;
  std::vector<MediaPart> media;
};

/// Owns a model's templates and an LRU cache of compiled templates from requests. Thread-safe. Used
/// by the InputProcessor.
class ChatRenderer {
 public:
  /// Errors: those of ChatTemplate::compile, with the template's name.
  static Result<std::unique_ptr<ChatRenderer>> create(ChatFiles files,
                                                      const ChatRendererOptions& options);

  /// Template precedence: the prompt's (source, or the name of one of the model's); with tools, the
  /// model's "tool_use"; "default". Errors: kInvalidArgument, also without any template; kAborted
  /// or kTimeout by `limits`.
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
