#include "runtime/http/field_table.hpp"

#include <string>
#include <utility>

#include "runtime/base/ordered_json.hpp"

namespace troupe {
namespace {

struct TypeName {
  JsonTypes type;
  std::string_view name;
  FieldType field;
};
constexpr TypeName kTypeNames[] = {
    {JsonTypes::kText, "a string", FieldType::kString},
    {JsonTypes::kBoolean, "true or false", FieldType::kBoolean},
    {JsonTypes::kInteger, "a whole number", FieldType::kInteger},
    {JsonTypes::kNumber, "a number", FieldType::kNumber},
    {JsonTypes::kArray, "an array", FieldType::kArray},
    {JsonTypes::kObject, "an object", FieldType::kObject},
};

bool is_of(const nlohmann::ordered_json& value, JsonTypes types) {
  return (has(types, JsonTypes::kText) && value.is_string()) ||
         (has(types, JsonTypes::kBoolean) && value.is_boolean()) ||
         (has(types, JsonTypes::kInteger) && value.is_number_integer()) ||
         (has(types, JsonTypes::kNumber) && value.is_number()) ||
         (has(types, JsonTypes::kArray) && value.is_array()) ||
         (has(types, JsonTypes::kObject) && value.is_object());
}

std::string described(JsonTypes types) {
  std::string text;
  for (const TypeName& each : kTypeNames)
    if (has(types, each.type)) text.append(text.empty() ? "" : " or ").append(each.name);
  return text;
}

}  // namespace

void copy_same_fields(const nlohmann::ordered_json& given, std::span<const SameField> fields,
                      nlohmann::ordered_json& chat) {
  for (const SameField& field : fields) {
    const auto found = given.find(field.name);
    if (found != given.end() && !found->is_null()) chat[field.chat_name] = *found;
  }
}

Result<void> check_own_fields(const nlohmann::ordered_json& given,
                              std::span<const OwnField> fields) {
  for (const OwnField& field : fields) {
    const auto found = given.find(field.name);
    const std::string name = field.name;
    if (found == given.end() || found->is_null()) {
      if (field.is_required) return invalid_argument(name + ": Field required", name);
    } else if (!is_of(*found, field.types)) {
      return invalid_argument(name + ": must be " + described(field.types), name);
    }
  }
  return {};
}

namespace {

bool is_of_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Where it is a whole word.
void replace_name(std::string& text, const RenamedField& field) {
  const auto& [from, to] = field;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    const std::size_t end = at + from.size();
    const bool is_word = (at == 0 || !is_of_a_name(text[at - 1])) &&
                         (end == text.size() || !is_of_a_name(text[end]));
    if (is_word) text.replace(at, from.size(), to);
    at += is_word ? to.size() : 1;
  }
}

std::string own_name(std::string chat_name, std::span<const RenamedField> fields) {
  for (const RenamedField& field : fields) replace_name(chat_name, field);
  return chat_name;
}

}  // namespace

Result<ChatRequest> parse_translated_request(std::string_view chat_body,
                                             const ServerDefaults& defaults,
                                             std::span<const RenamedField> fields) {
  Result<ChatRequest> request = parse_chat_request(chat_body, defaults);
  if (!request.ok()) {
    Error error = request.error();
    error.message = own_name(std::move(error.message), fields);
    error.param = own_name(std::move(error.param), fields);
    return error;
  }
  if (auto& structure = request->params.structured_outputs)
    structure->field = own_name(std::move(structure->field), fields);
  return request;
}

BodyShape shape_of_fields(std::span<const SameField> same, std::span<const OwnField> own,
                          const BodyShape& chat) {
  BodyShape shape;
  shape.num_reads = 1;
  for (const OwnField& field : own) {
    for (const TypeName& each : kTypeNames)
      if (has(field.types, each.type)) shape.read(field.name, each.field);
    shape.field(field.name).num_required = field.is_required ? 1 : 0;
  }
  for (const SameField& field : same) {
    const BodyField* known = chat.find(field.chat_name);
    if (known == nullptr) continue;
    BodyField& made = shape.field(field.name);
    made.types = known->types;
    made.range = known->range;
    made.choices = known->choices;
    made.num_required = field.is_required ? 1 : 0;
  }
  return shape;
}

}  // namespace troupe
