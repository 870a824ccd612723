#pragma once
// Finds the tool calls in an answer while it is generated.

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/reasoning/answer_delta.hpp"
#include "runtime/tool_parsers/argument_text.hpp"
#include "runtime/tool_parsers/call_pattern.hpp"
#include "runtime/tool_parsers/tool_declarations.hpp"
#include "runtime/tool_parsers/tool_format.hpp"

namespace troupe {

/// Splits the text of one answer into content and calls. What has been given out is a function of
/// the text so far, however it was cut into pieces. Text is held back only while it may be part of
/// a marker, or of a call whose name is not complete; whitespace while a call may follow.
///
/// Text in the place of a call that is none is content. A call that is not finished when the answer
/// ends stays as it is; without a complete name it is left out.
class ToolCallParser {
 public:
  /// `format` must outlive the parser; null tools: none are declared.
  ToolCallParser(const ToolFormat& format, std::shared_ptr<const ToolDeclarations> tools);

  /// Adds to `delta`.
  void feed(std::string_view text, AnswerDelta& delta);
  /// The answer is complete.
  void finish(AnswerDelta& delta);
  [[nodiscard]] std::int32_t num_calls() const noexcept { return num_calls_; }

 private:
  enum class State : std::uint8_t {
    kText,
    kJsonArguments,
    kObjectRest,  ///< what follows the arguments in the call's object
    kNextCall,    ///< in a list of calls
    kParameters,
    kParameterValue,
    kPythonArguments,
    kPythonValue,
    kEscapedArguments,
    kTail,  ///< the literals after the arguments
  };
  /// A pattern and its index among the literals; -1: it has no trigger.
  struct Alternative {
    CallPattern pattern;
    int literal = -1;
  };

  /// Each step returns whether it got on; false: it needs more text.
  void run(AnswerDelta& delta);
  bool step(AnswerDelta& delta);
  bool text_step(AnswerDelta& delta);
  bool literal_step(AnswerDelta& delta, bool& is_text);
  Match try_call(int literal, AnswerDelta& delta);
  bool json_step(AnswerDelta& delta);
  bool object_rest_step();
  bool next_call_step(AnswerDelta& delta);
  bool parameters_step(AnswerDelta& delta);
  bool parameter_value_step(AnswerDelta& delta);
  bool python_step(AnswerDelta& delta);
  bool python_value_step(AnswerDelta& delta);
  bool escaped_step(AnswerDelta& delta);
  bool tail_step();

  void begin_call(const CallHeader& header, AnswerDelta& delta);
  void begin_parameter(std::string_view key, AnswerDelta& delta);
  void end_call();
  void end_object();
  void arguments(std::string_view text, AnswerDelta& delta) const;
  void content(std::size_t num_bytes, AnswerDelta& delta);
  [[nodiscard]] std::string_view rest() const { return std::string_view(buffer_).substr(at_); }

  const ToolFormat& format_;
  const std::shared_ptr<const ToolDeclarations> tools_;
  std::vector<std::string_view> markers_;   ///< of the format, those of a section included
  std::vector<std::string_view> literals_;  ///< triggers, then markers
  int num_triggers_ = 0;
  std::bitset<256> first_bytes_;  ///< of literals_
  std::vector<Alternative> alternatives_;
  CallPattern parameter_;
  std::string_view value_end_;  ///< the literal after a parameter's value

  State state_ = State::kText;
  bool ended_ = false;
  std::string buffer_;
  std::size_t at_ = 0;  ///< what comes before has been given out
  std::string space_;   ///< whitespace that was held back
  bool has_content_ = false;
  bool after_call_ = false;  ///< no content since the last call
  std::int32_t num_calls_ = 0;

  // Of the current call.
  const CallPattern* pattern_ = nullptr;
  std::size_t part_ = 0;
  std::string name_;
  JsonNesting nesting_;  ///< of the arguments, then of the object around them
  bool value_begun_ = false;
  std::size_t num_parameters_ = 0;
  bool is_string_ = false;
  ValueScanner scanner_;
};

}  // namespace troupe
