#include "runtime/chat/chat_template.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "runtime/chat/content_format.hpp"
#include "runtime/chat/jinja/template.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe {
namespace {

using jinja::Dict;
using jinja::TemplateError;
using jinja::Value;

/// Appended to the last message while it is rendered, to find the end of the prompt. The trailing
/// space shows whether the template trims.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A template's message may contain a whole conversation: an error shows this many bytes of it.
constexpr std::size_t kMaxMessageBytes = 1000;

Error to_error(const TemplateError& error) {
  const bool is_own_words =
      error.kind() == TemplateError::Kind::kRaised || error.kind() == TemplateError::Kind::kLimit;
  std::string message = is_own_words ? error.what() : "chat template: " + std::string(error.what());
  if (message.size() > kMaxMessageBytes) {
    std::size_t end = kMaxMessageBytes;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
    message.replace(end, std::string::npos, "...");
  }
  return invalid_argument(std::move(message));
}

Result<Value> parse(const std::string& json, const char* param) {
  if (json.empty()) return Value();
  try {
    return jinja::parse_json(json);
  } catch (const TemplateError& error) {
    return invalid_argument(std::string(param) + ": " + error.what(), param);
  }
}

/// A message as seen by templates: without null fields, and with reasoning under all names that
/// templates read.
Value prepare_message(const Dict& message) {
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* given = message.find(name);
    if (reasoning == nullptr && given != nullptr && !given->is_none()) reasoning = given;
  }
  Dict prepared;
  if (reasoning != nullptr) prepared.set("thinking", *reasoning);
  for (const auto& [key, value] : message.entries()) {
    if (!value.is_none()) prepared.set(*key.string(), value);
  }
  if (reasoning != nullptr) {
    prepared.set("reasoning_content", *reasoning);
    prepared.set("reasoning", *reasoning);
  }
  return Value::dict(std::move(prepared));
}

/// The last message with the end mark after its (last) text.
Result<Value> mark_end(const Value& message) {
  const Value* content = message.dict()->find("content");
  if (!content) {
    return invalid_argument(
        "continue_final_message is set but the final message has no content to continue",
        "continue_final_message");
  }
  Dict marked = *message.dict();
  if (const std::string* text = content->string()) {
    marked.set("content", Value(*text + std::string(kEndMark)));
    return Value::dict(std::move(marked));
  }
  if (const std::vector<Value>* parts = content->items()) {
    std::vector<Value> copies = *parts;
    for (auto part = copies.rbegin(); part != copies.rend(); ++part) {
      const Value* text = part->dict() ? part->dict()->find("text") : nullptr;
      if (!text || !text->is_string()) continue;
      Dict copy = *part->dict();
      copy.set("text", Value(*text->string() + std::string(kEndMark)));
      *part = Value::dict(std::move(copy));
      marked.set("content", Value::list(std::move(copies)));
      return Value::dict(std::move(marked));
    }
  }
  return invalid_argument(
      "continue_final_message is set but the final message has no text to continue",
      "continue_final_message");
}

Result<void> cut_at_end_mark(std::string& text) {
  const std::string_view mark = jinja::strip(kEndMark);
  const std::size_t end = text.rfind(mark);
  if (end == std::string::npos) {
    return invalid_argument(
        "continue_final_message is set but the final message does not appear in the rendered chat",
        "continue_final_message");
  }
  const bool is_trimmed = text.compare(end, kEndMark.size(), kEndMark) != 0;
  text.resize(end);
  if (is_trimmed) text.resize(jinja::strip(text, jinja::Side::kRight).size());
  return {};
}

Result<Value> prepare_messages(const ChatTemplateInput& input) {
  ASSIGN_OR_RETURN(const Value parsed, parse(input.messages_json, "messages"));
  if (!parsed.is_list()) return invalid_argument("messages must be an array", "messages");
  if (parsed.items()->empty()) {
    return invalid_argument("messages is empty; provide at least one message", "messages");
  }
  std::vector<Value> messages;
  for (const Value& message : *parsed.items()) {
    if (!message.dict()) return invalid_argument("a message must be an object", "messages");
    messages.push_back(prepare_message(*message.dict()));
  }
  if (input.continue_final_message) {
    ASSIGN_OR_RETURN(messages.back(), mark_end(messages.back()));
  }
  return Value::list(std::move(messages));
}

Result<jinja::Variables> prepare_variables(const ChatTemplateInput& input) {
  if (input.continue_final_message && input.add_generation_prompt) {
    return invalid_argument("continue_final_message and add_generation_prompt cannot both be set",
                            "continue_final_message");
  }
  ASSIGN_OR_RETURN(Value messages, prepare_messages(input));
  ASSIGN_OR_RETURN(Value tools, parse(input.tools_json, "tools"));
  ASSIGN_OR_RETURN(Value documents, parse(input.documents_json, "documents"));
  ASSIGN_OR_RETURN(const Value kwargs, parse(input.template_kwargs_json, "chat_template_kwargs"));
  jinja::Variables variables;
  for (const auto& [name, text] : input.special_tokens) variables.emplace_back(name, Value(text));
  if (kwargs.dict()) {
    for (const auto& [name, value] : kwargs.dict()->entries()) {
      variables.emplace_back(*name.string(), value);
    }
  } else if (!kwargs.is_none()) {
    return invalid_argument("chat_template_kwargs must be an object", "chat_template_kwargs");
  }
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", std::move(documents));
  variables.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  return variables;
}

/// Byte spans as spans of code points, clamped to the end of the text. Spans may nest.
std::vector<TextSpan> to_code_points(const jinja::Rendering& rendering) {
  std::vector<TextSpan> spans;
  std::vector<std::pair<std::size_t, std::size_t*>> places;  // byte offset, and where its code
                                                             // point's number goes
  spans.resize(rendering.generation_spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    places.emplace_back(rendering.generation_spans[i].first, &spans[i].start);
    places.emplace_back(rendering.generation_spans[i].second, &spans[i].end);
  }
  std::sort(places.begin(), places.end());
  const std::string_view text = rendering.text;
  std::size_t offset = 0;
  std::size_t num_before = 0;
  for (const auto& [place, number] : places) {
    const std::size_t next = std::min(place, text.size());
    num_before += jinja::num_code_points(text.substr(offset, next - offset));
    offset = next;
    *number = num_before;
  }
  return spans;
}

}  // namespace

ChatClock ChatClock::now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  return {.unix_us =
              std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count(),
          .utc_offset_s = static_cast<std::int32_t>(local.tm_gmtoff)};
}

ChatTemplate::ChatTemplate(std::shared_ptr<const jinja::Template> compiled, std::string source,
                           const ChatTemplateLimits& limits)
    : compiled_(std::move(compiled)),
      source_(std::move(source)),
      limits_(limits),
      content_format_(detect_content_format(compiled_->body())) {}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(
    const std::string& source, const ChatTemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return Error{ErrorCode::kTooLarge, "the chat template has " + std::to_string(source.size()) +
                                           " bytes, the limit is " +
                                           std::to_string(limits.max_source_bytes)};
  }
  if (!jinja::is_valid_utf8(source))
    return invalid_argument("the chat template is not valid UTF-8");
  try {
    auto compiled = std::make_shared<const jinja::Template>(source);
    return std::shared_ptr<const ChatTemplate>(
        new ChatTemplate(std::move(compiled), source, limits));
  } catch (const TemplateError& error) {
    return to_error(error);
  }
}

Result<RenderedPrompt> ChatTemplate::render(const ChatTemplateInput& input,
                                            const WorkLimits& limits) const {
  try {
    ASSIGN_OR_RETURN(const jinja::Variables variables, prepare_variables(input));
    jinja::Rendering rendering =
        compiled_->render(variables, {limits, limits_.max_output_bytes, limits_.max_steps},
                          {input.clock.unix_us, input.clock.utc_offset_s});
    if (input.continue_final_message) RETURN_IF_ERROR(cut_at_end_mark(rendering.text));
    RenderedPrompt prompt;
    prompt.generation_spans = to_code_points(rendering);
    prompt.text = std::move(rendering.text);
    return prompt;
  } catch (const TemplateError& error) {
    return to_error(error);
  } catch (const WorkStopped& stopped) {
    if (stopped.reason() != WorkStopped::Reason::kTooMuch) {
      return stopped.error("rendering the chat template");
    }
    return invalid_argument("the chat template needs more than " +
                            std::to_string(limits_.max_steps) + " steps");
  }
}

bool ChatTemplate::knows_role(std::string_view role) const {
  for (const char quote : {'\'', '"'}) {
    if (source_.find(quote + std::string(role) + quote) != std::string::npos) return true;
  }
  return false;
}

}  // namespace troupe
