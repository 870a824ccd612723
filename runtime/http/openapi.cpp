#include "runtime/http/openapi.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/anthropic.hpp"
#include "runtime/http/body_shape.hpp"
#include "runtime/http/ollama.hpp"
#include "runtime/http/responses.hpp"

namespace troupe {
namespace {

using SchemaJson = nlohmann::ordered_json;

// ---- Bodies of requests

void add_limit(SchemaJson& schema, const char* name, double limit) {
  if (!std::isfinite(limit) || std::abs(limit) >= kAnyInt32.max) return;
  if (limit == std::floor(limit)) {
    schema[name] = static_cast<std::int64_t>(limit);
  } else {
    schema[name] = limit;
  }
}

SchemaJson shape_schema(const BodyShape& shape);

SchemaJson type_schema(FieldType type, const BodyField& field) {
  const auto array_of = [](SchemaJson items) {
    return SchemaJson{{"type", "array"}, {"items", std::move(items)}};
  };
  switch (type) {
    case FieldType::kBoolean:
      return {{"type", "boolean"}};
    case FieldType::kString:
      return field.choices.empty() ? SchemaJson{{"type", "string"}}
                                   : SchemaJson{{"type", "string"}, {"enum", field.choices}};
    case FieldType::kStrings:
      return array_of({{"type", "string"}});
    case FieldType::kIntegers:
      return array_of({{"type", "integer"}});
    case FieldType::kIntegerLists:
      return array_of(array_of({{"type", "integer"}}));
    case FieldType::kNumbers:
      return {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}};
    case FieldType::kObject:
      return shape_schema(field.members);
    case FieldType::kObjects:
      return array_of(shape_schema(field.members));
    case FieldType::kArray:
      return {{"type", "array"}};
    case FieldType::kInteger:
    case FieldType::kNumber:
      break;
  }
  SchemaJson schema = {{"type", type == FieldType::kInteger ? "integer" : "number"}};
  add_limit(schema, field.range.min_open ? "exclusiveMinimum" : "minimum", field.range.min);
  add_limit(schema, "maximum", field.range.max);
  return schema;
}

/// An array that is read as one of objects is also read whole.
std::vector<FieldType> distinct_types(const BodyField& field) {
  std::vector<FieldType> types = field.types;
  if (std::find(types.begin(), types.end(), FieldType::kObjects) != types.end())
    std::erase(types, FieldType::kArray);
  return types;
}

bool is_always_required(const BodyShape& shape, const BodyField& field) {
  return field.num_required > 0 && field.num_required >= shape.num_reads;
}

/// A field that is not required may be null.
SchemaJson field_schema(const BodyShape& shape, const BodyField& field) {
  SchemaJson ways = SchemaJson::array();
  for (const FieldType type : distinct_types(field)) ways.push_back(type_schema(type, field));
  const bool is_nullable = !is_always_required(shape, field);
  if (ways.size() == 1 && !ways[0].contains("enum")) {
    if (is_nullable) ways[0]["type"] = SchemaJson::array({ways[0]["type"], "null"});
    return ways[0];
  }
  if (is_nullable) ways.push_back({{"type", "null"}});
  return ways.size() == 1 ? ways[0] : SchemaJson{{"anyOf", std::move(ways)}};
}

SchemaJson shape_schema(const BodyShape& shape) {
  SchemaJson properties = SchemaJson::object(), required = SchemaJson::array();
  for (const auto& field : shape.fields) {
    if (field->types.empty()) continue;
    properties[field->name] = field_schema(shape, *field);
    if (is_always_required(shape, *field)) required.push_back(field->name);
  }
  SchemaJson schema = {{"type", "object"}};
  if (!properties.empty()) schema["properties"] = std::move(properties);
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

/// Bodies whose reading shows all fields: a parser reads some only where others have a value.
struct Example {
  Prepare* prepare;
  std::string_view body;
  int form = 0;  ///< a body has one of several, whose fields exclude each other
};
constexpr std::string_view kUserMessage = R"({"messages":[{"role":"user","content":"a"}]})";
constexpr Example kExamples[] = {
    {prepare_completion, R"({"prompt":"a"})"},
    {prepare_completion, R"({"prompt":["a"]})"},
    {prepare_completion, R"({"prompt":[1]})"},
    {prepare_completion, R"({"prompt":[[1]]})"},
    {prepare_completion,
     R"({"prompt":"a","structured_outputs":{"json":{},"choice":[]},"guided_json":{},"guided_choice":[]})"},
    {prepare_completion,
     R"({"prompt":"a","structured_outputs":{"json":"{}","structural_tag":"{}"},"guided_json":"{}"})"},
    {prepare_completion,
     R"({"prompt":"a","response_format":{"json_schema":{"schema":{}},"type":"json_schema"}})"},
    {prepare_chat, kUserMessage},
    {prepare_chat, R"({"messages":[{"role":"user","content":[{}]}],"tool_choice":"auto"})"},
    {prepare_chat, R"({"messages":[{"role":"user"}],"tool_choice":{}})"},
    {prepare_chat,
     R"({"messages":[{"role":"user"}],"structured_outputs":{"json":{},"choice":[]},"guided_json":{}})"},
    {prepare_chat,
     R"({"messages":[{"role":"user"}],"response_format":{"json_schema":{"schema":{}},"type":"json_schema"}})"},
    {prepare_tokenize, R"({"prompt":"a"})"},
    {prepare_tokenize, kUserMessage, 1},
    {prepare_detokenize, "{}"},
    {prepare_embeddings, R"({"input":"a"})"},
    {prepare_embeddings, R"({"input":["a"]})"},
    {prepare_embeddings, R"({"input":[1]})"},
    {prepare_embeddings, R"({"input":[[1]]})"},
    {prepare_embeddings, kUserMessage, 1},
    {prepare_pooling, R"({"input":"a"})"},
    {prepare_pooling, R"({"input":["a"]})"},
    {prepare_pooling, R"({"input":[1]})"},
    {prepare_pooling, R"({"input":[[1]]})"},
    {prepare_pooling, kUserMessage, 1},
    {prepare_classify, R"({"input":"a"})"},
    {prepare_classify, R"({"input":["a"]})"},
    {prepare_classify, R"({"input":[1]})"},
    {prepare_classify, R"({"input":[[1]]})"},
    {prepare_classify, kUserMessage, 1},
    {prepare_score, R"({"queries":"a","documents":"a"})"},
    {prepare_score, R"({"data_1":"a","data_2":"a"})", 1},
    {prepare_score, R"({"queries":"a","items":"a"})", 2},
    {prepare_score, R"({"text_1":"a","text_2":"a"})", 3},
    {prepare_rerank, R"({"query":"a","documents":["a"]})"},
    {prepare_rerank, R"({"query":"a","documents":[{}]})"},
    {prepare_ollama_embed, "{}"},
    {prepare_ollama_embeddings, "{}"},
    {prepare_batch, "{}"},
    {prepare_load_adapter, "{}"},
    {prepare_unload_adapter, "{}"},
    {prepare_drain, "{}"},
    {prepare_warm, R"({"prompts":["a"]})"},
    {prepare_warm, R"({"prompts":[[1]],"conversations":[{"messages":[]}]})"},
    {prepare_cache_export, "{}"},
    {prepare_cache_import, "{}"},
};

BodyShape recorded(Prepare* prepare, int form, const ServerDefaults& defaults) {
  BodyShape shape;
  const ShapeRecording recording(shape);
  for (const Example& example : kExamples)
    if (example.prepare == prepare && example.form == form)
      static_cast<void>(prepare(example.body, defaults));
  return shape;
}

SchemaJson body_schema(Prepare* prepare, const ServerDefaults& defaults) {
  using Rewritten = BodyShape (*)(const BodyShape& chat);
  constexpr std::pair<Prepare*, Rewritten> kRewritten[] = {
      {prepare_responses, responses_shape},     {prepare_input_tokens, responses_shape},
      {prepare_messages, messages_shape},       {prepare_count_tokens, count_tokens_shape},
      {prepare_ollama_chat, ollama_chat_shape}, {prepare_ollama_generate, ollama_generate_shape},
  };
  for (const auto& [other, shape_of] : kRewritten)
    if (other == prepare) return shape_schema(shape_of(recorded(prepare_chat, 0, defaults)));
  int num_forms = 1;
  for (const Example& example : kExamples)
    if (example.prepare == prepare) num_forms = std::max(num_forms, example.form + 1);
  SchemaJson forms = SchemaJson::array();
  for (int form = 0; form < num_forms; ++form)
    forms.push_back(shape_schema(recorded(prepare, form, defaults)));
  return num_forms == 1 ? forms[0] : SchemaJson{{"anyOf", std::move(forms)}};
}

/// Whether the body is a form, with a file in it.
bool takes_form(const DescribedRoute& route) {
  return route.method == "POST" &&
         (route.path == kFilesPath || route.path.starts_with("/v1/audio/"));
}

SchemaJson form_of(const DescribedRoute& route) {
  SchemaJson properties{{"file", {{"type", "string"}, {"format", "binary"}}}};
  SchemaJson required = SchemaJson::array({"file"});
  if (route.path == kFilesPath) {
    properties["purpose"] = {{"const", "batch"}};
    required.push_back("purpose");
  } else {
    for (const char* const name : {"model", "language", "prompt"})
      properties[name] = {{"type", "string"}};
    properties["response_format"] = {{"enum", {"json", "text", "verbose_json", "srt", "vtt"}}};
    properties["temperature"] = {{"type", "number"}};
    properties["stream"] = {{"type", "boolean"}};
  }
  return {{"type", "object"}, {"required", required}, {"properties", properties}};
}

SchemaJson request_body(const DescribedRoute& route, const ServerDefaults& defaults) {
  if (route.prepare != nullptr)
    return {
        {"required", true},
        {"content", {{"application/json", {{"schema", body_schema(route.prepare, defaults)}}}}}};
  return {{"required", true}, {"content", {{"multipart/form-data", {{"schema", form_of(route)}}}}}};
}

// ---- Answers

SchemaJson answer_schema(const SchemaJson& form);

SchemaJson reference(std::string_view name) {
  return {{"$ref", "#/components/schemas/" + std::string(name)}};
}

SchemaJson named_type(std::string_view name) {
  if (name == "any") return SchemaJson::object();
  if (name == "null" || (name.front() >= 'a' && name.front() <= 'z')) return {{"type", name}};
  return reference(name);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

SchemaJson text_schema(std::string_view form) {
  const bool is_nullable = form.ends_with('?');
  if (is_nullable) form.remove_suffix(1);
  if (form.starts_with('=')) {
    SchemaJson choices = SchemaJson::array();
    for (const std::string_view each : split(form.substr(1), '|')) choices.push_back(each);
    if (is_nullable) choices.push_back(nullptr);
    return {{"enum", std::move(choices)}};
  }
  SchemaJson ways = SchemaJson::array();
  for (const std::string_view each : split(form, '|')) ways.push_back(named_type(each));
  if (is_nullable) ways.push_back({{"type", "null"}});
  return ways.size() == 1 ? ways[0] : SchemaJson{{"anyOf", std::move(ways)}};
}

SchemaJson object_schema(const SchemaJson& form) {
  if (form.contains("*"))
    return {{"type", "object"}, {"additionalProperties", answer_schema(form["*"])}};
  SchemaJson properties = SchemaJson::object(), required = SchemaJson::array();
  for (const auto& [name, type] : form.items()) {
    const bool may_be_missing = name.ends_with('?');
    const std::string bare = may_be_missing ? name.substr(0, name.size() - 1) : name;
    properties[bare] = answer_schema(type);
    if (!may_be_missing) required.push_back(bare);
  }
  return {{"type", "object"},
          {"required", std::move(required)},
          {"properties", std::move(properties)},
          {"additionalProperties", false}};
}

SchemaJson answer_schema(const SchemaJson& form) {
  if (form.is_array()) return {{"type", "array"}, {"items", answer_schema(form[0])}};
  return form.is_object() ? object_schema(form) : text_schema(form.get<std::string>());
}

SchemaJson content_of(const RouteAnswer& answer) {
  SchemaJson content = SchemaJson::object();
  if (!answer.schema.empty()) content["application/json"]["schema"] = reference(answer.schema);
  if (!answer.media.empty())
    content[std::string(answer.media)]["schema"] = SchemaJson{{"type", "string"}};
  if (!answer.stream.empty())
    content[std::string(answer.stream)]["schema"] = SchemaJson{{"type", "string"}};
  return content;
}

SchemaJson operation_of(const DescribedRoute& route, const ServerDefaults& defaults) {
  const RouteAnswer& answer = route.answer;
  SchemaJson operation = SchemaJson::object(), parameters = SchemaJson::array();
  const auto add_parameter = [&](std::string_view name, const char* place, bool is_required) {
    parameters.push_back({{"name", name},
                          {"in", place},
                          {"required", is_required},
                          {"schema", {{"type", "string"}, {"minLength", is_required ? 1 : 0}}}});
  };
  if (route.path.find("{id}") != std::string_view::npos) add_parameter("id", "path", true);
  if (!answer.query.empty())
    for (const std::string_view name : split(answer.query, ','))
      add_parameter(name, "query", false);
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  if (route.prepare != nullptr || takes_form(route))
    operation["requestBody"] = request_body(route, defaults);
  operation["responses"]["200"]["description"] = "the answer";
  if (SchemaJson content = content_of(answer); !content.empty())
    operation["responses"]["200"]["content"] = std::move(content);
  operation["responses"]["default"] = {
      {"description", "an error, in the format of the API that the path belongs to"},
      {"content", {{"application/json", {{"schema", reference("Error")}}}}}};
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
      add(box, "p", type)
      for (const { properties = {}, required = [] } of media.schema.anyOf || [media.schema]) {
        const table = add(box, "table")
        for (const [field, value] of Object.entries(properties)) {
          const row = add(table, "tr"), { type, anyOf, ...rest } = value
          const types = anyOf ? anyOf.map(each => each.items && each.items.type ? "array of " + each.items.type : each.type) : [type].flat()
          add(row, "td", field + (required.includes(field) ? " *" : "")); add(row, "td", types.join(" | "))
          add(row, "td", Object.keys(rest).length ? JSON.stringify(rest) : "")
        }
      }
    }
  }
})
</script></body></html>
)page";

}  // namespace

std::string openapi_json(std::span<const DescribedRoute> routes, const ServerDefaults& defaults,
                         std::string_view version) {
  SchemaJson paths = SchemaJson::object();
  for (const DescribedRoute& route : routes)
    paths[std::string(route.path)][lower_case(route.method)] = operation_of(route, defaults);
  SchemaJson schemas = SchemaJson::object();
  const SchemaJson forms = SchemaJson::parse(kAnswerSchemas);
  for (const auto& [name, form] : forms.items()) schemas[name] = answer_schema(form);

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
