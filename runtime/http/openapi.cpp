#include "runtime/http/openapi.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/generation_fields.hpp"

namespace troupe {
namespace {

using SchemaJson = nlohmann::ordered_json;

/// What routes that end with an id are, in full.
struct FullPath {
  std::string_view method, path, full;
};
constexpr FullPath kFullPaths[] = {
    {"POST", "/v1/responses/", "/v1/responses/{id}/cancel"},
    {"POST", "/v1/batches/", "/v1/batches/{id}/cancel"},
    {"GET", "/v1/files/", "/v1/files/{id}"},
    {"GET", "/v1/files/", "/v1/files/{id}/content"},
    {"GET", "/v1/responses/", "/v1/responses/{id}"},
    {"GET", "/v1/responses/", "/v1/responses/{id}/input_items"},
};

void add_limit(SchemaJson& schema, const char* name, double limit, bool is_integer) {
  if (!std::isfinite(limit) || std::abs(limit) >= kAnyInt32.max) return;
  if (is_integer || limit == std::floor(limit)) {
    schema[name] = static_cast<std::int64_t>(limit);
  } else {
    schema[name] = limit;
  }
}

SchemaJson field_schema(const DescribedField& field) {
  const bool is_integer = field.type == "integer";
  SchemaJson schema = {{"type", SchemaJson::array({field.type, "null"})}};
  if (is_integer || field.type == "number") {
    add_limit(schema, field.range.min_open ? "exclusiveMinimum" : "minimum", field.range.min,
              is_integer);
    add_limit(schema, "maximum", field.range.max, is_integer);
  }
  return schema;
}

SchemaJson generation_schema(const char* prompt, SchemaJson prompt_schema) {
  SchemaJson properties = SchemaJson::object();
  properties["model"] = {{"type", SchemaJson::array({"string", "null"})}};
  properties[prompt] = std::move(prompt_schema);
  properties["stream"] = {{"type", SchemaJson::array({"boolean", "null"})}};
  for (const DescribedField& field : generation_field_table())
    properties[std::string(field.name)] = field_schema(field);
  return {{"type", "object"},
          {"description",
           "The fields that are read from the server's tables, with their ranges. Others of OpenAI "
           "and vLLM are read too, and not described here."},
          {"required", SchemaJson::array({prompt})},
          {"properties", std::move(properties)},
          {"additionalProperties", true}};
}

SchemaJson body_of_route(RouteBody body) {
  const auto content = [](const char* type, SchemaJson schema) {
    return SchemaJson{{"required", true}, {"content", {{type, {{"schema", std::move(schema)}}}}}};
  };
  const auto reference = [](const char* name) {
    return SchemaJson{{"$ref", std::string("#/components/schemas/") + name}};
  };
  switch (body) {
    case RouteBody::kCompletion:
      return content("application/json", reference("CompletionRequest"));
    case RouteBody::kChat:
      return content("application/json", reference("ChatCompletionRequest"));
    case RouteBody::kForm:
      return content("multipart/form-data", {{"type", "object"},
                                             {"required", SchemaJson::array({"file", "purpose"})},
                                             {"properties",
                                              {{"file", {{"type", "string"}, {"format", "binary"}}},
                                               {"purpose", {{"const", "batch"}}}}}});
    case RouteBody::kJson:
    case RouteBody::kNone:
      break;
  }
  return content("application/json", {{"type", "object"}});
}

SchemaJson operation_of(const DescribedRoute& route, const std::string& path) {
  SchemaJson operation = SchemaJson::object();
  if (path.find("{id}") != std::string::npos)
    operation["parameters"] = SchemaJson::array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  if (route.body != RouteBody::kNone) operation["requestBody"] = body_of_route(route.body);
  operation["responses"] = {
      {"200", {{"description", "the answer"}}},
      {"default",
       {{"description", "an error, in the format of the API that the path belongs to"},
        {"content",
         {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}}}};
  if (route.needs_key) operation["security"] = SchemaJson::array({{{"key", SchemaJson::array()}}});
  return operation;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

constexpr std::string_view kDocsPage = R"page(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Troupe API</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
details { border: 1px solid #ddd; border-radius: 4px; margin: .3rem 0 } summary { cursor: pointer; padding: .3rem .6rem; font-family: monospace }
b { display: inline-block; min-width: 5rem } table { border-collapse: collapse; margin: .4rem 1rem } td { padding: .1rem .8rem .1rem 0; font-family: monospace } p { margin: .4rem 1rem }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } details { border-color: #444 } }
</style></head><body><h1>Troupe API</h1>
<p>From <a href="openapi.json">openapi.json</a>, which clients and generators can read too.</p><main></main>
<script>
const add = (parent, name, text) => { const e = document.createElement(name); if (text !== undefined) e.textContent = text; parent.append(e); return e }
fetch("openapi.json").then(r => r.json()).then(api => {
  const main = document.querySelector("main")
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, operation] of Object.entries(methods)) {
    const box = add(main, "details"), head = add(box, "summary")
    add(head, "b", method.toUpperCase()); head.append(path + (operation.security ? "  (API key)" : ""))
    for (const [type, media] of Object.entries((operation.requestBody || { content: {} }).content)) {
      const name = media.schema.$ref, schema = name ? api.components.schemas[name.split("/").pop()] : media.schema
      add(box, "p", type + (schema.description ? ": " + schema.description : ""))
      const table = add(box, "table")
      for (const [field, value] of Object.entries(schema.properties || {})) {
        const row = add(table, "tr"), { type, ...rest } = value
        add(row, "td", field + ((schema.required || []).includes(field) ? " *" : "")); add(row, "td", [type].flat().join(" | "))
        add(row, "td", Object.keys(rest).length ? JSON.stringify(rest) : "")
      }
    }
  }
})
</script></body></html>
)page";

}  // namespace

std::string openapi_json(std::span<const DescribedRoute> routes, std::string_view version) {
  SchemaJson paths = SchemaJson::object();
  const auto add = [&](const DescribedRoute& route, const std::string& path) {
    paths[path][lower_case(route.method)] = operation_of(route, path);
  };
  for (const DescribedRoute& route : routes) {
    bool is_listed = false;
    for (const FullPath& each : kFullPaths) {
      if (each.method != route.method || each.path != route.path) continue;
      add(route, std::string(each.full));
      is_listed = true;
    }
    if (is_listed) continue;
    add(route, std::string(route.path) + (route.path.ends_with('/') ? "{id}" : ""));
  }
  const SchemaJson text = {{"type", "string"}};
  const SchemaJson message = {{"type", "object"},
                              {"required", SchemaJson::array({"role"})},
                              {"properties", {{"role", text}}},
                              {"additionalProperties", true}};
  SchemaJson schemas = SchemaJson::object();
  schemas["CompletionRequest"] =
      generation_schema("prompt", {{"description", "a text, token ids, or a list of either"},
                                   {"type", SchemaJson::array({"string", "array"})}});
  schemas["ChatCompletionRequest"] =
      generation_schema("messages", {{"type", "array"}, {"minItems", 1}, {"items", message}});
  SchemaJson error = {{"type", "object"}};
  error["properties"]["message"] = text;
  error["properties"]["type"] = text;
  error["properties"]["param"] = {{"type", SchemaJson::array({"string", "null"})}};
  schemas["Error"] = {{"type", "object"}};
  schemas["Error"]["properties"]["error"] = std::move(error);

  SchemaJson document = SchemaJson::object();
  document["openapi"] = "3.1.0";
  document["info"] = {{"title", "Troupe"}, {"version", version}};
  document["paths"] = std::move(paths);
  document["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  document["components"]["schemas"] = std::move(schemas);
  return document.dump(-1, ' ', false, SchemaJson::error_handler_t::replace);
}

std::string_view docs_page() noexcept { return kDocsPage; }

}  // namespace troupe
