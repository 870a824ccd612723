// Arbitrary text as a model's answer, in every format: parsing it must end, and must not depend on
// where the text is cut. The first byte chooses the format of calls, the second that of reasoning.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/tool_parsers/answer_parser.hpp"

namespace {

using namespace troupe;

/// The deltas, joined, as text.
std::string parse(const AnswerFormat& format, std::string_view text, std::size_t piece) {
  AnswerParser parser(format);
  std::string reasoning, content, calls;
  const auto add = [&](const AnswerDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.name.empty()) calls += "\n" + std::to_string(call.index) + call.name + "\n";
      calls += call.arguments;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) add(parser.feed(text.substr(at, piece)));
  add(parser.finish());
  return reasoning + "\n--\n" + content + "\n--\n" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 4096) return 0;
  static const auto tools = std::make_shared<const ToolDeclarations>(
      ToolDeclarations::parse(
          R"([{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"}}}}}])")
          .value());
  AnswerFormat format;
  format.declarations = tools;
  const auto formats = tool_formats();
  const std::size_t choice = data[0] % (formats.size() + 1);
  format.tools = choice < formats.size() ? &formats[choice] : &json_tool_format();
  const auto reasoning = reasoning_formats();
  const std::size_t reasoned = data[1] % (reasoning.size() + 1);
  if (reasoned > 0) format.reasoning = reasoning[reasoned - 1];
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  const std::string whole = parse(format, text, text.size() + 1);
  if (parse(format, text, 1) != whole || parse(format, text, 7) != whole) std::abort();
  return 0;
}
