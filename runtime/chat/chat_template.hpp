#pragma once
// A model's chat template: renders a conversation to prompt text, equal to Hugging Face's
// apply_chat_template.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"

namespace troupe {

namespace jinja {
class Template;
}

/// The content format of a template: a string, or OpenAI's list of typed parts.
enum class ContentFormat { kString, kOpenAi };

/// Limits of one rendering; a template may come from a client.
struct ChatTemplateLimits {
  std::size_t max_source_bytes = std::size_t{1} << 20;
  std::size_t max_output_bytes = std::size_t{64} << 20;  ///< also of any intermediate string
  std::uint64_t max_steps = 32'000'000;  ///< one per evaluated node and per 16 bytes read or built
};

/// Wall-clock time for strftime_now, in the server's time zone.
struct ChatClock {
  std::int64_t unix_us = 0;  ///< microseconds since 1970-01-01 UTC
  std::int32_t utc_offset_s = 0;

  /// The system's clock, in the system's time zone.
  [[nodiscard]] static ChatClock now();
};

/// The variables of one rendering. Empty JSON texts are absent; tools and documents are then none
/// in the template.
struct ChatTemplateInput {
  std::string messages_json;   ///< array of objects
  std::string tools_json;      ///< array
  std::string documents_json;  ///< array
  /// Object: additional variables, which override special_tokens.
  std::string template_kwargs_json;
  bool add_generation_prompt = false;
  bool continue_final_message = false;                ///< the prompt ends inside the last message
  std::map<std::string, std::string> special_tokens;  ///< "bos_token" -> "<s>"
  ChatClock clock;
};

/// [start, end) in Unicode code points of the rendered text.
struct TextSpan {
  std::size_t start = 0;
  std::size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

struct RenderedPrompt {
  std::string text;
  std::vector<TextSpan> generation_spans;  ///< text emitted by {% generation %} blocks
};

/// A compiled template. Immutable and thread-safe.
class ChatTemplate {
 public:
  /// Errors: kInvalidArgument with the line for a syntax error; kTooLarge for a source over
  /// limits.max_source_bytes.
  static Result<std::shared_ptr<const ChatTemplate>> compile(const std::string& source,
                                                             const ChatTemplateLimits& limits = {});

  /// Errors: kInvalidArgument with the text of raise_exception, the template's error, or the
  /// exceeded limit; kAborted or kTimeout by `limits`.
  Result<RenderedPrompt> render(const ChatTemplateInput& input,
                                const WorkLimits& limits = {}) const;

  /// kOpenAi if some loop of the template iterates over a message's content, else kString.
  [[nodiscard]] ContentFormat content_format() const noexcept { return content_format_; }
  /// Whether the template has this role as a string literal ('developer' or "developer"), so that
  /// messages may keep it.
  [[nodiscard]] bool knows_role(std::string_view role) const;

 private:
  ChatTemplate(std::shared_ptr<const jinja::Template> compiled, std::string source,
               const ChatTemplateLimits& limits);

  std::shared_ptr<const jinja::Template> compiled_;
  std::string source_;
  ChatTemplateLimits limits_;
  ContentFormat content_format_;
};

}  // namespace troupe
