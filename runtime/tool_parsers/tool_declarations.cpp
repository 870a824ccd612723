#include "runtime/tool_parsers/tool_declarations.hpp"

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

bool allows_string(const Json& schema) {
  if (!schema.is_object()) return true;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) return *type == "string";
    // Of several types, text that is no JSON is the string.
    return false;
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    return std::all_of(values->begin(), values->end(),
                       [](const Json& value) { return value.is_string(); });
  }
  return !schema.contains("anyOf") && !schema.contains("oneOf") && !schema.contains("allOf") &&
         !schema.contains("$ref");
}

}  // namespace

Result<ToolDeclarations> ToolDeclarations::parse(std::string_view tools_json) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  if (!tools.is_array()) return Error{ErrorCode::kCorrupt, "tools must be an array", "tools"};
  ToolDeclarations declarations;
  for (const Json& tool : tools) {
    const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      return Error{ErrorCode::kCorrupt, "a tool needs a function with a name", "tools"};
    }
    Parameters& parameters = declarations.functions_[function["name"].get<std::string>()];
    const Json schema = function.value("parameters", Json());
    const Json properties = schema.is_object() ? schema.value("properties", Json()) : Json();
    if (!properties.is_object()) continue;
    for (const auto& [name, property] : properties.items()) {
      parameters[name] = allows_string(property) ? ParameterType::kString : ParameterType::kJson;
    }
  }
  return declarations;
}

bool ToolDeclarations::has(std::string_view function) const {
  return functions_.find(function) != functions_.end();
}

ParameterType ToolDeclarations::type(std::string_view function, std::string_view parameter) const {
  const auto found = functions_.find(function);
  if (found == functions_.end()) return ParameterType::kString;
  const auto type = found->second.find(parameter);
  return type == found->second.end() ? ParameterType::kString : type->second;
}

}  // namespace troupe
