#include "runtime/http/structured_fields.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

using Kind = StructuredOutputKind;

constexpr std::size_t kMaxChoices = std::size_t{1} << 16;

/// Names of the same parameters in `structured_outputs` and in older requests.
struct Names {
  std::string_view json, json_object, regex, choice, grammar;
};
constexpr Names kNames{"json", "json_object", "regex", "choice", "grammar"};
constexpr Names kGuidedNames{"guided_json", "guided_json_object", "guided_regex", "guided_choice",
                             "guided_grammar"};
constexpr std::string_view kKinds = "json, regex, choice, grammar, json_object and structural_tag";
constexpr std::string_view kStructuralTag = "structural_tag";

/// A schema as an object, or as its JSON text.
std::optional<std::string> read_schema(const JsonFields& fields, std::string_view name) {
  if (fields.kind(name) == JsonKind::kObject) return fields.raw(name, JsonKind::kObject);
  if (fields.kind(name) == JsonKind::kString) return fields.text(name);
  fields.wrong_form(name, "a JSON Schema: an object, or a string of JSON");
  return std::nullopt;
}

StructuredOutputsParams made(Kind kind, std::string text) {
  StructuredOutputsParams params{.kind = kind};
  params.texts = {std::move(text)};
  return params;
}

/// What `fields` ask for under these names.
std::vector<StructuredOutputsParams> read_kinds(const JsonFields& fields, const Names& names) {
  std::vector<StructuredOutputsParams> found;
  if (fields.has(names.json)) {
    if (auto schema = read_schema(fields, names.json))
      found.push_back(made(Kind::kJsonSchema, *std::move(schema)));
  }
  if (const auto json_object = fields.boolean(names.json_object)) {
    if (*json_object) {
      found.push_back({.kind = Kind::kJsonObject});
    } else {
      fields.wrong_value(names.json_object, std::string(names.json_object) + " must be true");
    }
  }
  for (const auto& [name, kind] :
       {std::pair{names.regex, Kind::kRegex}, std::pair{names.grammar, Kind::kGrammar}}) {
    auto text = fields.text(name);
    if (!text) continue;
    if (text->empty()) fields.wrong_value(name, std::string(name) + " must not be empty");
    found.push_back(made(kind, *std::move(text)));
  }
  if (fields.has(names.choice)) {
    if (fields.kind(names.choice) != JsonKind::kArray) {
      fields.wrong_form(names.choice, "an array of strings");
    } else if (auto choices = fields.texts(names.choice, kMaxChoices)) {
      if (choices->empty())
        fields.wrong_value(names.choice, std::string(names.choice) + " must not be empty");
      found.push_back({.kind = Kind::kChoice});
      found.back().texts = *std::move(choices);
    }
  }
  return found;
}

std::vector<StructuredOutputsParams> read_response_format(const JsonFields& fields) {
  const std::optional<JsonFields> format = fields.object("response_format");
  if (!format) return {};
  format->require("type");
  const std::string type = format->text("type").value_or("text");
  const std::optional<JsonFields> described = format->object("json_schema");
  if (described) {
    described->text("name");
    described->text("description");
    described->boolean("strict");
  }
  if (type == "text") return {};
  if (type == "json_object") return {{.kind = Kind::kJsonObject}};
  if (type == "structural_tag") {
    return {
        made(Kind::kStructuralTag, fields.raw("response_format", JsonKind::kObject).value_or(""))};
  } else if (type != "json_schema") {
    format->wrong_value("type", "type must be text, json_object, json_schema or structural_tag");
  } else if (!format->has("json_schema")) {
    fields.fail(invalid_argument(
        "response_format of type json_schema must have the field json_schema", "response_format"));
  } else if (described) {
    described->require("name");
    described->require("schema");
    if (described->has("schema")) {
      if (auto schema = read_schema(*described, "schema"))
        return {made(Kind::kJsonSchema, *std::move(schema))};
    }
  }
  return {};
}

std::vector<StructuredOutputsParams> read_structured_field(const JsonFields& fields) {
  constexpr std::string_view kField = "structured_outputs";
  const std::optional<JsonFields> object = fields.object(kField);
  if (!object) return {};
  if (const auto name =
          object->other_name({kNames.json, kNames.json_object, kNames.regex, kNames.choice,
                              kNames.grammar, "structural_tag", "disable_any_whitespace",
                              "disable_additional_properties", "any_order", "whitespace_pattern"}))
    fields.fail(unsupported(kField, std::string(kField) + "." + *name));
  auto found = read_kinds(*object, kNames);
  if (object->kind(kStructuralTag) == JsonKind::kString) {
    found.push_back(made(Kind::kStructuralTag, *object->text(kStructuralTag)));
  } else if (auto tag = object->raw(kStructuralTag, JsonKind::kObject)) {
    found.push_back(made(Kind::kStructuralTag, *std::move(tag)));
  }
  if (found.size() != 1) {
    fields.wrong_value(kField, "structured_outputs must have exactly one of " +
                                   std::string(kKinds) + ", it has " +
                                   std::to_string(found.size()));
    return {};
  }
  StructuredOutputsParams& what = found.front();
  what.disable_any_whitespace = object->boolean("disable_any_whitespace").value_or(false);
  what.disable_additional_properties =
      object->boolean("disable_additional_properties").value_or(false);
  what.any_order = object->boolean("any_order").value_or(false);
  what.whitespace_pattern = object->text("whitespace_pattern");
  return found;
}

std::vector<StructuredOutputsParams> read_guided_fields(const JsonFields& fields) {
  auto found = read_kinds(fields, kGuidedNames);
  const auto whitespace_pattern = fields.text("guided_whitespace_pattern");
  for (StructuredOutputsParams& what : found) {
    what.whitespace_pattern = whitespace_pattern;
    what.field = what.kind == Kind::kJsonSchema   ? kGuidedNames.json
                 : what.kind == Kind::kJsonObject ? kGuidedNames.json_object
                 : what.kind == Kind::kRegex      ? kGuidedNames.regex
                 : what.kind == Kind::kChoice     ? kGuidedNames.choice
                                                  : kGuidedNames.grammar;
  }
  return found;
}

}  // namespace

void read_structured_outputs(const JsonFields& fields, SamplingParams& params) {
  std::vector<StructuredOutputsParams> found = read_response_format(fields);
  for (StructuredOutputsParams& what : found) what.field = "response_format";
  std::ranges::move(read_structured_field(fields), std::back_inserter(found));
  std::ranges::move(read_guided_fields(fields), std::back_inserter(found));
  if (found.empty()) return;
  if (found.size() > 1) {
    fields.fail(invalid_argument(found[0].field + " and " + found[1].field + " cannot both be set",
                                 found[1].field));
  }
  params.structured_outputs = std::move(found.front());
}

}  // namespace troupe
