// Joins schemas that hold at once.

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_resolver.hpp"

namespace troupe::schema {
namespace {

constexpr std::size_t kMaxMerges = 20'000;  ///< schemas joined for one grammar

Json common_multiple(const Json& a, const Json& b) {
  if (!a.is_number_integer() || !b.is_number_integer() || a.get<std::int64_t>() <= 0 ||
      b.get<std::int64_t>() <= 0 || a.get<std::int64_t>() > 1 << 30 ||
      b.get<std::int64_t>() > 1 << 30)
    refuse("two values of 'multipleOf' that hold at once are supported for integers only");
  return std::lcm(a.get<std::int64_t>(), b.get<std::int64_t>());
}

void merge_arrays(const Json& a, const Json& b, Json& result) {
  if (!b.contains("items") && !b.contains("prefixItems")) return;
  std::size_t num_prefix = 0;
  for (const Json* schema : {&a, &b})
    if (schema->contains("prefixItems"))
      num_prefix = std::max(num_prefix, (*schema)["prefixItems"].size());
  Json prefix = Json::array();
  for (std::size_t i = 0; i < num_prefix; ++i)
    prefix.push_back(all_of(item_schema(a, i), item_schema(b, i)));
  if (num_prefix > 0) result["prefixItems"] = std::move(prefix);
  result["items"] = all_of(item_schema(a, num_prefix), item_schema(b, num_prefix));
}

bool concerns_properties(const Json& schema) {
  return schema.contains("properties") || schema.contains("patternProperties") ||
         schema.contains("additionalProperties");
}

}  // namespace

Json SchemaResolver::merge(Json a, Json b) {
  if (++num_merges_ > kMaxMerges)
    refuse("more than " + std::to_string(kMaxMerges) + " schemas to be joined");
  if (a == Json(false) || b == Json(false)) return false;
  if (a == Json(true) || a.empty()) return b;
  if (b == Json(true) || b.empty()) return a;
  Json made = Json::object();
  merge_objects(a, b, made);
  merge_arrays(a, b, made);
  Json result = std::move(a);
  for (auto& [key, value] : made.get_ref<Json::object_t&>()) result[key] = std::move(value);
  for (auto& [key, value] : b.get_ref<Json::object_t&>()) {
    if (key == "properties" || key == "patternProperties" || key == "additionalProperties" ||
        key == "items" || key == "prefixItems")
      continue;
    const auto mine = result.find(key);
    if (mine == result.end()) {
      result[key] = std::move(value);
    } else if (key == "type") {
      Json types = Json::array();
      for (const std::string_view type : kTypes)
        if (includes_type(*mine, type) && includes_type(value, type)) types.push_back(type);
      if (types.empty()) return false;
      *mine = std::move(types);
    } else if (key == "enum") {
      Json values = Json::array();
      for (const Json& one : *mine)
        if (std::find(value.begin(), value.end(), one) != value.end()) values.push_back(one);
      if (values.empty()) return false;
      *mine = std::move(values);
    } else if (key == "minimum" || key == "exclusiveMinimum") {
      if (less(number_of(key, *mine), number_of(key, value))) *mine = value;
    } else if (key == "maximum" || key == "exclusiveMaximum") {
      if (less(number_of(key, value), number_of(key, *mine))) *mine = value;
    } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
      *mine = std::max(count_of(key, *mine), count_of(key, value));
    } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
      *mine = std::min(count_of(key, *mine), count_of(key, value));
    } else if (key == "pattern" || key == "format") {
      Json both = mine->is_array() ? *mine : Json::array({*mine});
      for (const Json& one : value.is_array() ? value : Json::array({value}))
        if (std::find(both.begin(), both.end(), one) == both.end()) both.push_back(one);
      *mine = std::move(both);
    } else if (key == "required" || key == kAnyOfs || key == kContains || key == kNotTexts ||
               key == kNotPatterns || key == kNotMultiples) {
      for (const Json& one : value)
        if (std::find(mine->begin(), mine->end(), one) == mine->end()) mine->push_back(one);
    } else if (key == "uniqueItems") {
      *mine = *mine == Json(true) || value == Json(true);
    } else if (key == "multipleOf") {
      if (*mine != value) *mine = common_multiple(*mine, value);
    } else if (key == "propertyNames") {
      *mine = all_of(*mine, value);
    }
  }
  return result;
}

void SchemaResolver::merge_objects(const Json& a, Json& b, Json& result) {
  if (!concerns_properties(b)) return;
  if (!concerns_properties(a)) {
    for (const char* key : {"properties", "patternProperties", "additionalProperties"})
      if (b.contains(key)) result[key] = std::move(b[key]);
    return;
  }
  Json properties = Json::object();
  const Json& of_a = property(a, "properties");
  const Json& of_b = property(b, "properties");
  // Looking a name up in an object takes as long as the object has names.
  std::unordered_map<std::string_view, const Json*> in_b;
  for (const auto& [name, inner] : of_b.get_ref<const Json::object_t&>())
    in_b.emplace(name, &inner);
  auto& list = properties.get_ref<Json::object_t&>();
  list.reserve(of_a.size() + of_b.size());
  for (const auto& [name, inner] : of_a.get_ref<const Json::object_t&>()) {
    const auto other = in_b.find(name);
    if (other == in_b.end()) {
      list.emplace_back(name, all_of(inner, of_unnamed(b, name)));
    } else {
      list.emplace_back(name, all_of(inner, *other->second));
      in_b.erase(other);
    }
  }
  for (const auto& [name, inner] : of_b.get_ref<const Json::object_t&>())
    if (in_b.contains(name)) list.emplace_back(name, all_of(of_unnamed(a, name), inner));
  // A name that matches a pattern of one of them is an additional one to the other, unless it
  // matches there, too: with the same patterns, or none, that is certain.
  const Json& patterns_a = property(a, "patternProperties");
  const Json& patterns_b = property(b, "patternProperties");
  Json patterns = Json::object();
  const auto add_all = [&](const Json& from, const Json& others, const Json& other_additional) {
    for (const auto& [pattern, inner] : from.items()) {
      const auto other = others.find(pattern);
      if (other != others.end()) {
        patterns[pattern] = all_of(inner, *other);
      } else if (others.empty() || other_additional == Json(true)) {
        patterns[pattern] = all_of(inner, other_additional);
      } else {
        refuse(
            "schemas with different 'patternProperties' and 'additionalProperties' that hold "
            "at once are not supported");
      }
    }
  };
  add_all(patterns_a, patterns_b, additional(b));
  add_all(patterns_b, patterns_a, additional(a));
  result["properties"] = std::move(properties);
  if (!patterns.empty()) result["patternProperties"] = std::move(patterns);
  result["additionalProperties"] = all_of(additional(a), additional(b));
}

}  // namespace troupe::schema
