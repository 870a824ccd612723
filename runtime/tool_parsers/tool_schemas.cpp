#include "runtime/tool_parsers/tool_schemas.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "runtime/tool_parsers/argument_text.hpp"
#include "runtime/tool_parsers/call_pattern.hpp"
#include "runtime/tool_parsers/tool_declarations.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

Json parameters_of(const Json& tool) {
  const Json& function = tool.at("function");
  Json schema = function.value("parameters", Json());
  if (!schema.is_object()) schema = Json::object();
  if (schema.empty()) schema = {{"type", "object"}, {"properties", Json::object()}};
  return schema;
}

/// "#/$defs/x" -> "#/$defs/<prefix>x", and the same of "#/definitions/x".
void rename_references(Json& schema, const std::string& prefix) {
  if (schema.is_array()) {
    for (Json& element : schema) rename_references(element, prefix);
  }
  if (!schema.is_object()) return;
  for (auto& [key, value] : schema.items()) {
    if (key != "$ref" || !value.is_string()) {
      rename_references(value, prefix);
      continue;
    }
    const std::string target = value.get<std::string>();
    for (const std::string_view root : {"#/$defs/", "#/definitions/"}) {
      if (target.starts_with(root)) value = "#/$defs/" + prefix + target.substr(root.size());
    }
  }
}

/// Moves the definitions of `schema` into `definitions`.
void hoist(Json& schema, const std::string& prefix, Json& definitions) {
  rename_references(schema, prefix);
  for (const char* key : {"$defs", "definitions"}) {
    if (!schema.contains(key) || !schema[key].is_object()) continue;
    for (auto& [name, definition] : schema[key].items())
      definitions[prefix + name] = std::move(definition);
    schema.erase(key);
  }
}

}  // namespace

Result<std::string> parameters_schema(std::string_view tools_json, std::string_view function) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  for (const Json& tool : tools) {
    if (tool.at("function").at("name") == function) return parameters_of(tool).dump();
  }
  return Error{ErrorCode::kNotFound, "there is no tool '" + std::string(function) + "'", "tools"};
}

Result<std::string> calls_schema(std::string_view tools_json, bool parallel) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  Json definitions = Json::object();
  Json calls = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    Json parameters = parameters_of(tools[i]);
    hoist(parameters, "tool" + std::to_string(i) + ".", definitions);
    calls.push_back({{"type", "object"},
                     {"properties",
                      {{"name", {{"const", tools[i].at("function").at("name")}}},
                       {"parameters", std::move(parameters)}}},
                     {"required", {"name", "parameters"}},
                     {"additionalProperties", false}});
  }
  Json schema = {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", std::move(calls)}}}};
  if (!parallel) schema["maxItems"] = 1;
  if (!definitions.empty()) schema["$defs"] = std::move(definitions);
  return schema.dump();
}

namespace {

bool is_strict(const Json& tool) {
  const Json& function = tool.at("function");
  return function.contains("strict") && function["strict"] == true;
}

bool has_any(std::string_view text, std::string_view characters) {
  return text.find_first_of(characters) != std::string_view::npos;
}

/// Properties one by one, as the parser of the format reads them; null if it cannot be said.
Json parameters_format(const ToolFormat& format, const Json& schema, std::string_view function,
                       const ToolDeclarations& tools) {
  const CallPattern pattern = compile_pattern(format.parameter);
  // <begin> {key} <middle> {value} <end>; the middle may have an {id}.
  const std::size_t value = pattern.size() < 2 ? 0 : pattern.size() - 2;
  const bool has_id = value == 5 && pattern[3].kind == PatternPartKind::kId;
  if ((value != 3 && !has_id) || pattern[1].kind != PatternPartKind::kKey ||
      pattern[value].kind != PatternPartKind::kValue)
    return nullptr;
  // The end of a value must not be found within it: no name or constant has a part of it.
  if (schema.dump().find('<') != std::string::npos) return nullptr;
  Json texts = Json::array();
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, unused] : properties.items()) {
    if (name.empty() || has_any(name, "<>{}[]()\"' \t\r\n=")) return nullptr;
    if (tools.type(function, name) == ParameterType::kString) texts.push_back(name);
  }
  for (const Json& name : schema.value("required", Json::array()))
    if (!properties.contains(name)) return nullptr;
  const std::string_view rest = pattern[value - 1].literal;  // up to the value
  const auto middle = [&](std::string_view is_text) {
    std::string all(pattern[2].literal);
    if (has_id) (all += is_text) += rest;
    return all;
  };
  std::string end(pattern[value + 1].literal);
  if (rest.ends_with('\n')) {
    end.insert(0, end.starts_with('\n') ? "" : "\n");
  }
  while (end.ends_with('\n')) end.pop_back();
  return {
      {"type", "parameters"},      {"json_schema", schema},         {"begin", pattern[0].literal},
      {"middle", middle("false")}, {"text_middle", middle("true")}, {"end", end},
      {"separator", "\n"},         {"texts", std::move(texts)}};
}

/// Keyword arguments of Python, their values as JSON; null if a name is none of Python's.
Json keywords_format(const Json& schema) {
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, unused] : properties.items())
    if (name.empty() || has_any(name, "=,() \t\r\n[]{}\"'")) return nullptr;
  for (const Json& name : schema.value("required", Json::array()))
    if (!properties.contains(name)) return nullptr;
  return {
      {"type", "parameters"}, {"json_schema", schema}, {"begin", ""}, {"middle", "="}, {"end", ""},
      {"separator", ", "}};
}

/// For a function whose arguments may be anything: an object. Where they are written one by one,
/// there are only those that it declares.
Json any_arguments(const Json& tool, const CallPattern& pattern) {
  Json schema = {{"type", "object"}};
  const bool one_by_one = std::any_of(pattern.begin(), pattern.end(), [](const PatternPart& part) {
    return part.kind == PatternPartKind::kParameters || part.kind == PatternPartKind::kPython;
  });
  if (!one_by_one) return schema;
  const Json properties = parameters_of(tool).value("properties", Json::object());
  for (const auto& [name, unused] : properties.items()) schema["properties"][name] = true;
  return schema;
}

/// What JSON takes as whitespace: \s would be any of Unicode's.
constexpr std::string_view kSpaceRegex = R"([ \t\n\r]{0,4})";

/// A regular expression of exactly this text.
std::string regex_of(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (has_any(R"(\^$.|?*+()[]{}/-)", {&c, 1})) regex += '\\';
    regex += c;
  }
  return regex;
}

/// {"name": "f"
std::string named_object_regex(const std::string& name, const std::string& space) {
  return R"(\{)" + space + "\"name\"" + space + ":" + space + regex_of(Json(name).dump());
}

/// Up to the arguments, with the spaces that models write.
std::string object_regex(const std::string& name) {
  const std::string space(kSpaceRegex);
  return named_object_regex(name, space) + space + "," + space + "\"(parameters|arguments)\"" +
         space + ":" + space;
}

/// How calls of this function begin, with any spaces, where no marker tells them from text.
std::string begin_regex(const CallPattern& pattern, const std::string& name) {
  const std::string any_space = R"(\s*)";
  std::string regex = any_space;
  for (const PatternPart& part : pattern) {
    switch (part.kind) {
      case PatternPartKind::kLiteral:
        regex += regex_of(part.literal) + any_space;
        break;
      case PatternPartKind::kObject:
        return regex + named_object_regex(name, any_space);
      case PatternPartKind::kPython:
        return regex + regex_of(name) + any_space + R"(\()";
      default:
        return regex + regex_of(name);
    }
  }
  return regex;
}

/// A call as a tag of its own, between two texts that are around all calls of a list, if there are
/// such.
struct HeldCall {
  Json tag;
  std::string list_begin;
  std::string list_end;
};

/// The ids that models of a format write; null if these cannot be said.
Json id_format(CallIds ids) {
  switch (ids) {
    case CallIds::kNumbered:
      return {{"type", "regex"}, {"pattern", "0|[1-9][0-9]{0,3}"}};
    case CallIds::kNine:
      return {{"type", "regex"}, {"pattern", "[A-Za-z0-9]{9}"}};
    case CallIds::kOpenAi:
      break;
  }
  return nullptr;
}

std::optional<HeldCall> held_call(const ToolFormat& format, const CallPattern& pattern,
                                  const std::string& name, const Json& schema,
                                  const ToolDeclarations& tools, bool is_required) {
  HeldCall held;
  std::string begin, end;
  std::string end_regex;
  std::string call_end;           // of a call in a list
  Json elements = Json::array();  // between them
  std::string behind_element;     // text that is not in `elements` yet
  const auto add = [&](Json element) {
    if (!behind_element.empty())
      elements.push_back({{"type", "const_string"}, {"value", std::exchange(behind_element, {})}});
    elements.push_back(std::move(element));
  };
  Json content = {{"type", "json_schema"}, {"json_schema", schema}};
  const std::string object_begin =
      "{\"name\": " + Json(name).dump() + ", \"" + std::string(format.arguments_key) + "\": ";
  bool has_arguments = false, has_name = false;
  for (const PatternPart& part : pattern) {
    switch (part.kind) {
      case PatternPartKind::kLiteral:
        (has_arguments ? end : elements.empty() ? begin : behind_element) += part.literal;
        continue;
      case PatternPartKind::kName:
        begin += name;
        has_name = true;
        continue;
      case PatternPartKind::kId:
        add(id_format(format.ids));
        if (elements.back().is_null()) return std::nullopt;
        continue;
      case PatternPartKind::kObject:
        has_name = true;
        if (!is_required && trigger_of(pattern).empty()) {
          // That it is a call is known when its name is there: the model has chosen its spaces.
          add({{"type", "regex"}, {"pattern", object_regex(name)}});
          end_regex = std::string(kSpaceRegex) + R"(\})";
          break;
        }
        begin += object_begin;
        end += "}";
        break;
      case PatternPartKind::kObjects:
        held.list_begin = std::exchange(begin, object_begin) + "[";
        held.list_end = "]";
        call_end = "}";
        has_name = true;
        break;
      case PatternPartKind::kPython:
        if (has_any(name, "=,() \t\r\n[]{}\"'")) return std::nullopt;
        held.list_begin = std::exchange(begin, name + "(");
        call_end = ")";
        content = keywords_format(schema);
        has_name = true;
        break;
      case PatternPartKind::kParameters:
        content = parameters_format(format, schema, name, tools);
        break;
      case PatternPartKind::kJson:
        break;
      default:
        return std::nullopt;
    }
    has_arguments = true;
  }
  if (!has_arguments || !has_name || content.is_null()) return std::nullopt;
  if (!elements.empty()) {
    add(std::move(content));
    if (!end_regex.empty()) add({{"type", "regex"}, {"pattern", end_regex}});
    content = {{"type", "sequence"}, {"elements", std::move(elements)}};
  }
  if (!held.list_begin.empty()) held.list_end += std::exchange(end, call_end);
  held.tag = {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
  return held;
}

/// Calls by one of a format's patterns.
struct HeldCalls {
  Json all;             ///< FORMAT of one or more calls
  Json tags;            ///< how they may begin in a text
  std::string trigger;  ///< of the tags; empty: calls cannot be told from text
  Json begins;          ///< then: regular expressions of how an answer begins that is a call
};

std::string_view without_space_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kJsonSpace) + 1);
}

Result<std::optional<HeldCalls>> held_calls(const ToolFormat& format, std::size_t number,
                                            const Json& tools, const ToolDeclarations& declarations,
                                            const CallRule& rule) {
  const CallPattern pattern = compile_pattern(format.patterns[number]);
  std::optional<HeldCall> call;
  Json tags = Json::array(), begins = Json::array();
  for (const Json& tool : tools) {
    const std::string name = tool.at("function").at("name").get<std::string>();
    if (!rule.function.empty() && rule.function != name) continue;
    const bool by_schema =
        rule.required || is_strict(tool) || rule.strict_level == ToolStrictLevel::kParameter;
    call = held_call(format, pattern, name,
                     by_schema ? parameters_of(tool) : any_arguments(tool, pattern), declarations,
                     rule.required);
    if (!call) return std::optional<HeldCalls>();
    begins.push_back(begin_regex(pattern, name));
    tags.push_back(std::move(call->tag));
  }
  if (tags.empty())
    return Error{ErrorCode::kNotFound, "there is no tool '" + rule.function + "'", "tools"};
  HeldCalls held;
  const bool is_list = !call->list_begin.empty();
  held.all = {{"type", "tags_with_separator"},
              {"separator", is_list ? ", " : format.between},
              {"at_least_one", true},
              {"tags", tags},
              {"stop_after_first", !rule.parallel}};
  held.tags = std::move(tags);
  held.trigger = trigger_of(pattern);
  if (!format.section_begin.empty()) held.trigger = without_space_behind(format.section_begin);
  if (is_list || !format.section_begin.empty()) {
    held.all = {{"type", "tag"},
                {"begin", std::string(format.section_begin) + call->list_begin},
                {"content", std::move(held.all)},
                {"end", call->list_end + std::string(format.section_end)}};
    held.tags = Json::array({held.all});
  }
  // Other text may begin alike: then all that stands before the name tells them apart.
  const auto begins_text = [&] {
    return std::ranges::any_of(
        format.markers, [&](std::string_view marker) { return marker.starts_with(held.trigger); });
  };
  if (begins_text()) held.trigger = pattern.front().literal;
  if (begins_text()) held.trigger.clear();
  held.begins = std::move(begins);
  return std::optional(std::move(held));
}

/// Says of every text in a FORMAT that it names special tokens.
void name_special_tokens(Json& format) {
  if (format.is_array()) {
    for (Json& element : format) name_special_tokens(element);
  }
  if (!format.is_object()) return;
  const std::string type = format.value("type", "");
  if (type == "json_schema" || type == "regex") return;
  for (const char* key : {"elements", "tags", "content"})
    if (format.contains(key)) name_special_tokens(format[key]);
  if (type != "sequence" && type != "or") format["special_tokens"] = true;
}

}  // namespace

Result<std::optional<std::string>> calls_tag(const ToolFormat& format, std::string_view tools_json,
                                             const CallRule& rule) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  ASSIGN_OR_RETURN(const ToolDeclarations declarations, ToolDeclarations::parse(tools_json));
  Json alternatives = Json::array(), tags = Json::array(), triggers = Json::array();
  Json at_start = Json::array(), begins = Json::array();
  std::vector<std::size_t> numbers = format.held;
  if (!rule.required)
    numbers.insert(numbers.end(), format.also_held.begin(), format.also_held.end());
  for (const std::size_t number : numbers) {
    ASSIGN_OR_RETURN(auto held, held_calls(format, number, tools, declarations, rule));
    if (!held) return std::optional<std::string>();
    if (!rule.required && held->trigger.empty()) {
      // An answer that begins as a call does is one.
      at_start.push_back(std::move(held->all));
      for (Json& begin : held->begins) begins.push_back(std::move(begin));
      continue;
    }
    alternatives.push_back(std::move(held->all));
    for (Json& tag : held->tags) tags.push_back(std::move(tag));
    if (std::ranges::find(triggers, Json(held->trigger)) == triggers.end())
      triggers.push_back(held->trigger);
  }
  Json calls = alternatives.size() == 1
                   ? std::move(alternatives.front())
                   : Json{{"type", "or"}, {"elements", std::move(alternatives)}};
  if (!rule.required) {
    calls = triggers.empty() ? Json{{"type", "any_text"}}
                             : Json{{"type", "triggered_tags"},
                                    {"triggers", std::move(triggers)},
                                    {"tags", std::move(tags)},
                                    {"stop_after_first", !rule.parallel}};
    if (!at_start.empty()) {
      calls["not_at_start"] = std::move(begins);
      Json elements = Json::array({std::move(calls)});
      const Json space = {{"type", "regex"}, {"pattern", std::string(kSpaceRegex)}};
      for (Json& each : at_start)
        elements.push_back({{"type", "sequence"}, {"elements", {space, std::move(each)}}});
      calls = {{"type", "or"}, {"elements", std::move(elements)}};
    }
  }
  if (format.has_special_tokens) name_special_tokens(calls);
  return std::optional(Json{{"format", std::move(calls)}}.dump());
}

bool has_calls_at_start(const ToolFormat& format) {
  return std::ranges::any_of(format.held, [&](std::size_t number) {
    return trigger_of(compile_pattern(format.patterns[number])).empty() &&
           format.section_begin.empty();
  });
}

Result<std::string> only_tools(std::string_view tools_json, const std::vector<std::string>& names) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  const auto name_of = [](const Json& tool) {
    return tool.at("function").at("name").get<std::string>();
  };
  for (const std::string& name : names)
    if (std::ranges::none_of(tools, [&](const Json& tool) { return name_of(tool) == name; }))
      return invalid_argument(
          "tool_choice allows " + name.substr(0, 64) + ", which is not in tools", "tool_choice");
  Json kept = Json::array();
  for (const Json& tool : tools)
    if (std::ranges::find(names, name_of(tool)) != names.end()) kept.push_back(tool);
  return kept.size() == tools.size() ? std::string(tools_json) : kept.dump();
}

bool has_strict_tool(std::string_view tools_json) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  return std::any_of(tools.begin(), tools.end(), is_strict);
}

std::string shown_tools(std::string_view tools_json) {
  Json tools = Json::parse(tools_json, nullptr, false);
  bool is_changed = false;
  for (Json& tool : tools) {
    Json& function = tool.at("function");
    is_changed |= function.erase("strict") > 0;
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && !parameters->is_null()) continue;
    function["parameters"] = parameters_of(tool);
    is_changed = true;
  }
  return is_changed ? tools.dump() : std::string(tools_json);
}

}  // namespace troupe
