#include "runtime/reasoning/reasoning_grammar.hpp"

#include <optional>
#include <string>
#include <utility>

#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

/// Levels of the tag around a structure.
constexpr std::size_t kOwnLevels = 8;

Json text_element(std::string_view text) {
  return {{"type", "const_string"}, {"value", std::string(text)}};
}

/// {"structures", "triggers"} as a format.
Json triggered_tags(const Json& tag) {
  Json tags = Json::array();
  for (const Json& structure : tag.value("structures", Json::array())) {
    if (!structure.is_object()) continue;
    tags.push_back(
        {{"begin", structure.value("begin", Json())},
         {"content", {{"type", "json_schema"}, {"json_schema", structure.value("schema", Json())}}},
         {"end", structure.value("end", Json())}});
  }
  return {{"type", "triggered_tags"}, {"triggers", tag.value("triggers", Json())}, {"tags", tags}};
}

/// As the FORMAT of a structural tag; nullopt: it is not one.
std::optional<Json> format_of(const StructuredOutputsParams& structure) {
  using Kind = StructuredOutputKind;
  if (structure.kind == Kind::kJsonObject)
    return Json{{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
  if (structure.texts.empty()) return std::nullopt;
  const std::string& text = structure.texts.front();
  switch (structure.kind) {
    case Kind::kRegex:
      return Json{{"type", "regex"}, {"pattern", text}};
    case Kind::kGrammar:
      return Json{{"type", "grammar"}, {"grammar", text}};
    case Kind::kChoice: {
      Json elements = Json::array();
      for (const std::string& choice : structure.texts) elements.push_back(text_element(choice));
      return Json{{"type", "or"}, {"elements", std::move(elements)}};
    }
    default:
      break;
  }
  if (is_nested_deeper(text, kMaxJsonDepth - kOwnLevels)) return std::nullopt;
  Json json = parse_bounded_json<Json>(text);
  if (json.is_discarded()) return std::nullopt;
  if (structure.kind == Kind::kJsonSchema)
    return Json{{"type", "json_schema"}, {"json_schema", std::move(json)}};
  if (!json.is_object()) return std::nullopt;
  return json.contains("format") ? json["format"] : triggered_tags(json);
}

void set_format(StructuredOutputsParams& structure, Json format) {
  structure.kind = StructuredOutputKind::kStructuralTag;
  structure.texts = {Json{{"format", std::move(format)}}.dump()};
}

Json marker(const ReasoningFormat& format, std::string_view text) {
  Json element = text_element(text);
  if (format.has_special_tokens) element["special_tokens"] = true;
  return element;
}

/// The answer behind the marker that tells texts from calls, if the format has one.
Json marked_text(const ReasoningFormat& format, Json answer) {
  if (format.text_begin.empty()) return answer;
  return {{"type", "sequence"},
          {"elements", {marker(format, format.text_begin), std::move(answer)}}};
}

}  // namespace

bool or_calls(StructuredOutputsParams& structure, const std::optional<ReasoningFormat>& reasoning,
              std::string_view calls) {
  std::optional<Json> text = format_of(structure);
  if (!text) return false;
  if (reasoning) text = marked_text(*reasoning, *std::move(text));
  Json tag = Json::parse(calls, nullptr, false);
  set_format(structure,
             {{"type", "or"}, {"elements", {std::move(tag["format"]), *std::move(text)}}});
  return true;
}

bool begin_with_reasoning(StructuredOutputsParams& structure, const ReasoningFormat& format,
                          bool is_text) {
  std::optional<Json> answer = format_of(structure);
  if (!answer) return false;
  if (is_text) answer = marked_text(format, *std::move(answer));
  Json ends = {std::string(format.end)};
  // A call in the reasoning would end it, and be held by nothing.
  for (const std::string_view end : format.implicit_ends) ends.push_back(std::string(end));
  const Json reasoning = {{"type", "any_text"}, {"excludes", std::move(ends)}};
  Json all;
  if (format.repeats) {
    Json section = {{"begin", format.begin},
                    {"content", reasoning},
                    {"end", std::string(format.end) + std::string(format.behind)}};
    if (format.has_special_tokens) section["special_tokens"] = true;
    const Json sections = {
        {"type", "tags_with_separator"}, {"separator", ""}, {"tags", {std::move(section)}}};
    all = {{"type", "sequence"}, {"elements", {sections, *answer}}};
  } else {
    Json elements = Json::array();
    if (!format.starts_inside) elements.push_back(marker(format, format.begin));
    elements.push_back(reasoning);
    elements.push_back(marker(format, format.end));
    elements.push_back({{"type", "regex"}, {"pattern", "[ \\t\\n\\r]{0,4}"}});
    elements.push_back(*answer);
    all = {{"type", "sequence"}, {"elements", std::move(elements)}};
    // Then the model decides whether it reasons.
    if (!format.starts_inside) all = {{"type", "or"}, {"elements", {*answer, std::move(all)}}};
  }
  set_format(structure, std::move(all));
  return true;
}

}  // namespace troupe
