#include "runtime/tool_parsers/tool_schemas.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/ordered_json.hpp"
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
  if (pattern.size() != 5 || pattern[1].kind != PatternPartKind::kKey ||
      pattern[3].kind != PatternPartKind::kValue)
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
  std::string end(pattern[4].literal);
  if (pattern[2].literal.ends_with('\n')) {
    end.insert(0, end.starts_with('\n') ? "" : "\n");
  }
  while (end.ends_with('\n')) end.pop_back();
  return {{"type", "parameters"},
          {"json_schema", schema},
          {"begin", pattern[0].literal},
          {"middle", pattern[2].literal},
          {"end", end},
          {"separator", "\n"},
          {"texts", std::move(texts)}};
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
  for (const auto& [name, unused] : parameters_of(tool).value("properties", Json::object()).items())
    schema["properties"][name] = true;
  return schema;
}

/// A call as a tag of its own, between two texts that are around all calls of a list, if there are
/// such.
struct HeldCall {
  Json tag;
  std::string list_begin;
  std::string list_end;
};

std::optional<HeldCall> held_call(const ToolFormat& format, const CallPattern& pattern,
                                  const std::string& name, const Json& schema,
                                  const ToolDeclarations& tools) {
  HeldCall held;
  std::string begin, end;
  std::string call_end;  // of a call in a list
  Json content = {{"type", "json_schema"}, {"json_schema", schema}};
  const std::string object_begin = "{\"name\": " + Json(name).dump() + ", \"arguments\": ";
  bool has_arguments = false, has_name = false;
  for (const PatternPart& part : pattern) {
    switch (part.kind) {
      case PatternPartKind::kLiteral:
        (has_arguments ? end : begin) += part.literal;
        continue;
      case PatternPartKind::kName:
        begin += name;
        has_name = true;
        continue;
      case PatternPartKind::kObject:
        begin += object_begin;
        end += "}";
        has_name = true;
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
  if (!held.list_begin.empty()) held.list_end += std::exchange(end, call_end);
  held.tag = {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
  return held;
}

}  // namespace

Result<std::optional<std::string>> calls_tag(const ToolFormat& format, std::string_view tools_json,
                                             const CallRule& rule) {
  if (format.has_special_tokens || format.patterns.empty()) return std::optional<std::string>();
  const CallPattern pattern = compile_pattern(format.patterns.front());
  const std::string trigger(trigger_of(pattern));
  if (trigger.empty() && !rule.required) return std::optional<std::string>();
  const Json tools = Json::parse(tools_json, nullptr, false);
  ASSIGN_OR_RETURN(const ToolDeclarations declarations, ToolDeclarations::parse(tools_json));
  std::optional<HeldCall> call;
  Json tags = Json::array();
  for (const Json& tool : tools) {
    const std::string name = tool.at("function").at("name").get<std::string>();
    if (!rule.function.empty() && rule.function != name) continue;
    const Json schema =
        rule.required || is_strict(tool) ? parameters_of(tool) : any_arguments(tool, pattern);
    call = held_call(format, pattern, name, schema, declarations);
    if (!call) return std::optional<std::string>();
    tags.push_back(std::move(call->tag));
  }
  if (tags.empty())
    return Error{ErrorCode::kNotFound, "there is no tool '" + rule.function + "'", "tools"};
  const bool is_list = !call->list_begin.empty();
  Json calls = {{"type", "tags_with_separator"},
                {"separator", is_list ? ", " : "\n"},
                {"at_least_one", true},
                {"tags", std::move(tags)},
                {"stop_after_first", !rule.parallel}};
  if (is_list && rule.required) {
    calls = {{"type", "sequence"},
             {"elements",
              {{{"type", "const_string"}, {"value", call->list_begin}},
               std::move(calls),
               {{"type", "const_string"}, {"value", call->list_end}}}}};
  }
  if (!rule.required) {
    Json held = is_list ? Json::array({{{"type", "tag"},
                                        {"begin", call->list_begin},
                                        {"content", std::move(calls)},
                                        {"end", call->list_end}}})
                        : std::move(calls["tags"]);
    calls = {{"type", "triggered_tags"},
             {"triggers", {trigger}},
             {"tags", std::move(held)},
             {"stop_after_first", !rule.parallel}};
  }
  return std::optional(Json{{"format", std::move(calls)}}.dump());
}

bool has_strict_tool(std::string_view tools_json) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  return std::any_of(tools.begin(), tools.end(), is_strict);
}

}  // namespace troupe
