#include "runtime/structured_output/schema_keywords.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "runtime/base/ordered_json.hpp"

namespace troupe::schema {

void refuse(const std::string& what) { throw GrammarRefused("json_schema: " + what); }

std::string quote(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Nesting::Nesting(int& depth, int limit, std::string_view what) : depth_(depth) {
  if (depth_ == limit)
    refuse(std::string(what) + " stand within each other, or lead to each other, more than " +
           std::to_string(limit) + " times");
  ++depth_;
}

std::string_view type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::string:
      return "string";
    case Json::value_t::array:
      return "array";
    case Json::value_t::object:
      return "object";
    default: {
      const double number = value.get<double>();
      return value.is_number_integer() || number == std::floor(number) ? "integer" : "number";
    }
  }
}

const Json& list_of_schemas(const std::string& key, const Json& argument) {
  if (!argument.is_array() || argument.empty()) refuse(quote(key) + " must be a list of schemas");
  return argument;
}

Decimal number_of(const std::string& key, const Json& value) {
  if (!value.is_number()) refuse(quote(key) + " must be a number");
  return Decimal::parse(dump(value));
}

std::uint32_t count_of(const std::string& key, const Json& value) {
  if (!value.is_number() || value.get<double>() < 0 ||
      value.get<double>() != std::floor(value.get<double>()))
    refuse(quote(key) + " must be a whole number that is not negative");
  return static_cast<std::uint32_t>(std::min(value.get<double>(), 4e9));
}

bool includes_type(const Json& types, std::string_view type) {
  for (const Json& t : types) {
    const auto& name = t.get_ref<const std::string&>();
    if (name == type || (name == "number" && type == "integer")) return true;
  }
  return false;
}

const Json& property(const Json& schema, const char* key) {
  static const Json kNone = Json::object();
  const auto found = schema.find(key);
  if (found == schema.end()) return kNone;
  if (!found->is_object()) refuse(quote(key) + " must be an object");
  return *found;
}

namespace {

const Json& anything() {
  static const Json kAnything = true;
  return kAnything;
}

}  // namespace

const Json& additional(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return found == schema.end() ? anything() : *found;
}

bool comes_first(const Json& schema, std::string_view first, std::string_view second) {
  for (const auto& [key, value] : schema.items()) {
    if (key == first) return true;
    if (key == second) return false;
  }
  return false;
}

Json all_of(const Json& a, const Json& b) {
  if (a == b || b == Json(true)) return a;
  if (a == Json(true)) return b;
  return Json{{"allOf", Json::array({a, b})}};
}

Json any_of(const Json& schemas) {
  if (schemas.empty()) return false;
  return schemas.size() == 1 ? schemas[0] : Json{{"anyOf", schemas}};
}

Json without(const std::string& property) { return Json{{"properties", {{property, false}}}}; }

const Json& item_schema(const Json& schema, std::size_t index) {
  const auto prefix = schema.find("prefixItems");
  if (prefix != schema.end() && index < prefix->size()) return (*prefix)[index];
  const auto items = schema.find("items");
  return items == schema.end() ? anything() : *items;
}

void TypeSet::add(std::string_view type) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i] == type || (type == "number" && kTypes[i] == "integer")) bits_.set(i);
}

bool TypeSet::has(std::string_view type) const {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i] == type) return bits_.test(i);
  return false;
}

TypeSet TypeSet::operator&(const TypeSet& other) const {
  TypeSet both;
  both.bits_ = bits_ & other.bits_;
  return both;
}

TypeSet types_of(const Json& schema) {
  TypeSet types;
  const auto find = [&](const char* key) {
    return schema.is_object() ? schema.find(key) : schema.end();
  };
  if (const auto values = find("enum"); values != schema.end()) {
    for (const Json& one : *values) types.add(type_of(one));
  } else if (const auto names = find("type"); names != schema.end()) {
    for (const Json& name : *names) types.add(name.get_ref<const std::string&>());
  } else {
    for (const std::string_view type : kTypes) types.add(type);
  }
  return types;
}

bool is_kept(std::string_view keyword) {
  static const std::unordered_set<std::string_view> kKept{"properties",
                                                          "patternProperties",
                                                          "additionalProperties",
                                                          "propertyNames",
                                                          "required",
                                                          "minProperties",
                                                          "maxProperties",
                                                          "items",
                                                          "prefixItems",
                                                          "additionalItems",
                                                          "minItems",
                                                          "maxItems",
                                                          "uniqueItems",
                                                          "minLength",
                                                          "maxLength",
                                                          "pattern",
                                                          "format",
                                                          "minimum",
                                                          "maximum",
                                                          "exclusiveMinimum",
                                                          "exclusiveMaximum",
                                                          "multipleOf",
                                                          kNotTexts,
                                                          kNotPatterns,
                                                          kNotMultiples};
  return kKept.contains(keyword);
}

bool says_nothing(std::string_view keyword) {
  static const std::unordered_set<std::string_view> kResolved{"$ref",
                                                              "$dynamicRef",
                                                              "$recursiveRef",
                                                              "extends",
                                                              "disallow",
                                                              "divisibleBy",
                                                              "allOf",
                                                              "anyOf",
                                                              "oneOf",
                                                              "not",
                                                              "if",
                                                              "dependentRequired",
                                                              "dependencies",
                                                              "dependentSchemas",
                                                              "const",
                                                              "enum",
                                                              "contains",
                                                              "type",
                                                              "unevaluatedProperties",
                                                              "unevaluatedItems",
                                                              kAnyOfs,
                                                              kContains};
  return !is_kept(keyword) && !kResolved.contains(keyword);
}

}  // namespace troupe::schema
