#include "runtime/tool_parsers/answer_parser.hpp"

#include <utility>

#include "runtime/base/hash.hpp"

namespace troupe {

const ToolFormat& json_tool_format() {
  static const ToolFormat format{.name = "json", .patterns = {"{objects}"}};
  return format;
}

std::string call_id(const ToolFormat* format, std::string_view response_id, std::int32_t sample,
                    const ToolCallDelta& call) {
  const CallIds ids = format == nullptr ? CallIds::kOpenAi : format->ids;
  if (ids == CallIds::kNumbered) {
    const std::string number = call.model_id.empty() ? std::to_string(call.index) : call.model_id;
    return "functions." + call.name + ":" + number;
  }
  const std::string digits = to_hex(xxh3_128(
      std::string(response_id) + "/" + std::to_string(sample) + "/" + std::to_string(call.index)));
  return ids == CallIds::kNine ? digits.substr(0, 9) : "chatcmpl-tool-" + digits.substr(0, 16);
}

AnswerParser::AnswerParser(const AnswerFormat& format)
    : parallel_tool_calls_(format.parallel_tool_calls),
      is_named_call_(format.is_named_call),
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
  answer(rest, false, delta);
  return delta;
}

AnswerDelta AnswerParser::finish() {
  AnswerDelta delta;
  std::string rest;
  if (reasoning_) reasoning_->finish(delta.reasoning, rest);
  answer(rest, true, delta);
  return delta;
}

bool AnswerParser::has_calls() const noexcept {
  return tools_ && tools_->num_calls() > 0 && !is_named_call_;
}

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
