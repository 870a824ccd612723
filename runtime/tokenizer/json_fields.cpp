#include "runtime/tokenizer/json_fields.hpp"

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe::json_fields {
namespace {

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Error wrong_type(const char* key, const char* expected) {
  return malformed(std::string("\"") + key + "\" is not " + expected);
}

}  // namespace

Error malformed(const std::string& what) {
  return {ErrorCode::kCorrupt, "tokenizer.json: " + what, {}};
}

Error unsupported(const std::string& what) {
  return {ErrorCode::kUnsupported, "tokenizer.json: " + what + " is not supported", {}};
}

Result<std::string> type_of(const Json& component, const char* room) {
  const Json* type = find(component, "type");
  if (type == nullptr || !type->is_string()) {
    return malformed(std::string(room) + " has no \"type\"");
  }
  return type->get<std::string>();
}

Result<std::string> text(const Json& object, const char* key) {
  const Json* field = find(object, key);
  if (field == nullptr || !field->is_string()) return wrong_type(key, "a string");
  return field->get<std::string>();
}

Result<std::optional<std::string>> optional_text(const Json& object, const char* key) {
  if (find(object, key) == nullptr) return std::optional<std::string>();
  ASSIGN_OR_RETURN(std::string value, text(object, key));
  return std::optional<std::string>(std::move(value));
}

Result<bool> boolean(const Json& object, const char* key, bool fallback) {
  const Json* field = find(object, key);
  if (field == nullptr) return fallback;
  if (!field->is_boolean()) return wrong_type(key, "a boolean");
  return field->get<bool>();
}

Result<std::uint32_t> number(const Json& object, const char* key) {
  const Json* field = find(object, key);
  // Token ids are 32-bit and signed in the engine.
  if (field == nullptr || !field->is_number_unsigned() ||
      field->get<std::uint64_t>() > 0x7FFFFFFFu) {
    return wrong_type(key, "a number from 0 to 2147483647");
  }
  return field->get<std::uint32_t>();
}

Result<std::uint32_t> number(const Json& object, const char* key, std::uint32_t fallback) {
  if (find(object, key) == nullptr) return fallback;
  return number(object, key);
}

Result<const Json*> array(const Json& object, const char* key) {
  const Json* field = find(object, key);
  if (field == nullptr || !field->is_array()) return wrong_type(key, "an array");
  return field;
}

Result<char32_t> character(const Json& object, const char* key) {
  ASSIGN_OR_RETURN(const std::string value, text(object, key));
  if (unicode::count(value) != 1) return wrong_type(key, "one character");
  return unicode::decode_at(value, 0);
}

}  // namespace troupe::json_fields
