#include "runtime/tool_parsers/tool_schemas.hpp"

#include "runtime/base/ordered_json.hpp"

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

}  // namespace troupe
