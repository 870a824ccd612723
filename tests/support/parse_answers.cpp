// parse_answers < cases.jsonl > results.jsonl: for each line {"format", "tools", "text"}, the
// answer that the format's parser makes of the text: {"content", "calls": [{"name", "arguments"}]},
// or
// {"error"}. The text is fed whole, byte by byte, and cut at every place; all must give the same.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "runtime/tool_parsers/answer_parser.hpp"

namespace {

using Json = nlohmann::ordered_json;

/// The deltas of an answer, joined.
struct Joined {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  ///< name and arguments
  bool operator==(const Joined&) const = default;

  void add(const troupe::AnswerDelta& delta) {
    content += delta.content;
    for (const troupe::ToolCallDelta& call : delta.tool_calls) {
      const auto index = static_cast<std::size_t>(call.index);
      if (calls.size() <= index) calls.resize(index + 1);
      calls[index].first += call.name;
      calls[index].second += call.arguments;
    }
  }
};

/// Fed in pieces that end at each of the places.
Joined parse(const troupe::AnswerFormat& format, std::string_view text,
             std::initializer_list<std::size_t> cuts) {
  troupe::AnswerParser parser(format);
  Joined joined;
  std::size_t begin = 0;
  for (const std::size_t end : cuts) {
    joined.add(parser.feed(text.substr(begin, end - begin)));
    begin = end;
  }
  joined.add(parser.feed(text.substr(begin)));
  joined.add(parser.finish());
  return joined;
}

Joined parse_bytes(const troupe::AnswerFormat& format, std::string_view text) {
  troupe::AnswerParser parser(format);
  Joined joined;
  for (std::size_t i = 0; i < text.size(); ++i) joined.add(parser.feed(text.substr(i, 1)));
  joined.add(parser.finish());
  return joined;
}

Json answer_of(const Json& given) {
  auto tools = troupe::ToolDeclarations::parse(given["tools"].dump());
  if (!tools.ok()) return {{"error", tools.error().message}};
  const troupe::ToolFormat* format = troupe::find_tool_format(given["format"].get<std::string>());
  if (format == nullptr) return {{"error", "no such format"}};
  troupe::AnswerFormat answer;
  answer.tools = format;
  answer.declarations = std::make_shared<const troupe::ToolDeclarations>(std::move(tools).value());
  const auto text = given["text"].get<std::string>();
  const Joined whole = parse(answer, text, {});
  if (parse_bytes(answer, text) != whole) return {{"error", "byte by byte it is another answer"}};
  for (std::size_t cut = 1; cut < text.size(); ++cut)
    if (parse(answer, text, {cut}) != whole)
      return {{"error", "cut at byte " + std::to_string(cut) + " it is another answer"}};
  Json result = {{"content", whole.content}, {"calls", Json::array()}};
  for (const auto& [name, arguments] : whole.calls)
    result["calls"].push_back({{"name", name}, {"arguments", arguments}});
  return result;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << answer_of(Json::parse(line)).dump() << '\n';
  return 0;
}
