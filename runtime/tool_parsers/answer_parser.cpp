#include "runtime/tool_parsers/answer_parser.hpp"

#include <utility>

namespace troupe {

const ToolFormat& json_tool_format() {
  static const ToolFormat format{.name = "json", .patterns = {"{objects}"}};
  return format;
}

AnswerParser::AnswerParser(const AnswerFormat& format)
    : include_reasoning_(format.include_reasoning),
      parallel_tool_calls_(format.parallel_tool_calls),
      forced_function_(format.forced_function) {
  if (format.reasoning) reasoning_.emplace(*format.reasoning);
  if (format.tools != nullptr) tools_.emplace(*format.tools, format.declarations);
}

AnswerDelta AnswerParser::feed(std::string_view text) {
  AnswerDelta delta;
  if (!reasoning_) {
    answer(text, false, delta);
    return delta;
  }
  std::string rest;
  reasoning_->feed(text, delta.reasoning, rest);
  if (!include_reasoning_) delta.reasoning.clear();
  answer(rest, false, delta);
  return delta;
}

AnswerDelta AnswerParser::finish() {
  AnswerDelta delta;
  std::string rest;
  if (reasoning_) reasoning_->finish(delta.reasoning, rest);
  if (!include_reasoning_) delta.reasoning.clear();
  answer(rest, true, delta);
  return delta;
}

bool AnswerParser::has_calls() const noexcept { return tools_ && tools_->num_calls() > 0; }

void AnswerParser::answer(std::string_view text, bool ended, AnswerDelta& delta) {
  if (!forced_function_.empty()) {
    if (text.empty() && (forced_begun_ || !ended)) return;
    ToolCallDelta& call = delta.tool_call(0);
    if (!std::exchange(forced_begun_, true)) call.name = forced_function_;
    call.arguments += text;
    return;
  }
  if (!tools_) {
    delta.content += text;
    return;
  }
  tools_->feed(text, delta);
  if (ended) tools_->finish(delta);
  if (!parallel_tool_calls_) {
    std::erase_if(delta.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
  }
}

}  // namespace troupe
