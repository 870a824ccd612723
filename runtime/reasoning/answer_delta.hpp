#pragma once
// What a piece of generated text adds to an answer.

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct ToolCallDelta {
  std::int32_t index = 0;  ///< of the call in the answer
  std::string name;        ///< with the first delta of a call only
  std::string model_id;    ///< with the first delta: the model's id or number of the call, if any
  std::string arguments;   ///< JSON text; those of all deltas make one object
  bool operator==(const ToolCallDelta&) const = default;
};

struct AnswerDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool operator==(const AnswerDelta&) const = default;

  [[nodiscard]] bool empty() const noexcept {
    return reasoning.empty() && content.empty() && tool_calls.empty();
  }
  /// The delta of call `index`: the last one, or a new one.
  [[nodiscard]] ToolCallDelta& tool_call(std::int32_t index) {
    if (tool_calls.empty() || tool_calls.back().index != index)
      tool_calls.push_back({.index = index, .name = {}, .model_id = {}, .arguments = {}});
    return tool_calls.back();
  }
};

}  // namespace troupe
