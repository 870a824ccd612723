#include "runtime/tool_parsers/tool_schemas.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "runtime/tool_parsers/call_pattern.hpp"

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

/// Before and behind the arguments of a call; nullopt: they are not the only variable part.
std::optional<std::pair<std::string, std::string>> around_arguments(const CallPattern& pattern,
                                                                    const std::string& name) {
  std::string begin, end;
  bool has_arguments = false, has_name = false;
  for (const PatternPart& part : pattern) {
    std::string& text = has_arguments ? end : begin;
    switch (part.kind) {
      case PatternPartKind::kLiteral:
        text += part.literal;
        break;
      case PatternPartKind::kName:
        text += name;
        has_name = true;
        break;
      case PatternPartKind::kObject:
        begin += "{\"name\": " + Json(name).dump() + ", \"arguments\": ";
        end += "}";
        has_arguments = has_name = true;
        break;
      case PatternPartKind::kJson:
        has_arguments = true;
        break;
      default:
        return std::nullopt;
    }
  }
  if (!has_arguments || !has_name) return std::nullopt;
  return std::pair(begin, end);
}

}  // namespace

Result<std::optional<std::string>> calls_tag(const ToolFormat& format, std::string_view tools_json,
                                             const CallRule& rule) {
  if (format.has_special_tokens || format.patterns.empty()) return std::optional<std::string>();
  const CallPattern pattern = compile_pattern(format.patterns.front());
  const std::string trigger(trigger_of(pattern));
  if (trigger.empty()) return std::optional<std::string>();
  const Json tools = Json::parse(tools_json, nullptr, false);
  Json tags = Json::array();
  for (const Json& tool : tools) {
    const std::string name = tool.at("function").at("name").get<std::string>();
    if (!rule.function.empty() && rule.function != name) continue;
    const auto around = around_arguments(pattern, name);
    if (!around) return std::optional<std::string>();
    Json schema = {{"type", "object"}};
    if (rule.required || is_strict(tool)) schema = parameters_of(tool);
    tags.push_back({{"type", "tag"},
                    {"begin", around->first},
                    {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                    {"end", around->second}});
  }
  if (tags.empty())
    return Error{ErrorCode::kNotFound, "there is no tool '" + rule.function + "'", "tools"};
  Json held = {{"type", "triggered_tags"}, {"triggers", {trigger}}};
  if (rule.required) {
    held = {{"type", "tags_with_separator"}, {"separator", "\n"}, {"at_least_one", true}};
  }
  held["tags"] = std::move(tags);
  held["stop_after_first"] = !rule.parallel;
  return std::optional(Json{{"format", std::move(held)}}.dump());
}

bool has_strict_tool(std::string_view tools_json) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  return std::any_of(tools.begin(), tools.end(), is_strict);
}

}  // namespace troupe
