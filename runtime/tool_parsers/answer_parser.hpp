#pragma once
// From generated text to an answer: reasoning, content and tool calls.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/reasoning/answer_delta.hpp"
#include "runtime/reasoning/reasoning_parser.hpp"
#include "runtime/tool_parsers/tool_call_parser.hpp"

namespace troupe {

/// How the answer to one request is parsed; shared by its samples.
struct AnswerFormat {
  std::optional<ReasoningFormat> reasoning;
  bool include_reasoning = true;      ///< false: the client does not want it
  const ToolFormat* tools = nullptr;  ///< null: text with calls is content
  std::shared_ptr<const ToolDeclarations> declarations;
  /// The whole text is the arguments of this function; `tools` is null.
  std::string forced_function;
  bool parallel_tool_calls = true;  ///< false: only the first call counts
  /// The client has named the function: calls are no reason to end, as OpenAI has it.
  bool is_named_call = false;

  /// Whether text is anything but content.
  [[nodiscard]] bool is_parsed() const noexcept {
    return reasoning || tools != nullptr || !forced_function.empty();
  }
};

/// The calls as {"name", "parameters"} in a JSON array: for a model of which no own format is
/// known, held to it by a grammar.
[[nodiscard]] const ToolFormat& json_tool_format();

/// The id of a call: the same whenever the request is run again. `call`: its first delta.
[[nodiscard]] std::string call_id(const ToolFormat* format, std::string_view response_id,
                                  std::int32_t sample, const ToolCallDelta& call);

/// Of one sample. What has been given out is a function of the text so far.
class AnswerParser {
 public:
  explicit AnswerParser(const AnswerFormat& format);

  [[nodiscard]] AnswerDelta feed(std::string_view text);
  [[nodiscard]] AnswerDelta finish();
  [[nodiscard]] bool has_calls() const noexcept;

 private:
  /// The text that is no reasoning.
  void answer(std::string_view text, bool ended, AnswerDelta& delta);

  const bool parallel_tool_calls_;
  const bool is_named_call_;
  std::string forced_function_;
  bool forced_begun_ = false;
  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> tools_;
};

}  // namespace troupe
