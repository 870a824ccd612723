// What a schema does not take, as schemas: for oneOf, not and if.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_resolver.hpp"

namespace troupe::schema {
namespace {

constexpr std::size_t kMaxNegations = 64;  ///< schemas that together say what one does not
constexpr int kMaxNegationDepth = 8;       ///< of properties within each other
constexpr int kMaxNestedKeywords = 16;     ///< of those that need negation

Json other_types(const Json& types) {
  Json others = Json::array();
  Json fractions;
  for (const std::string_view type : kTypes) {
    if (includes_type(types, type) || type == "integer") continue;
    if (type == "number" && includes_type(types, "integer")) {
      fractions = Json{{"type", Json::array({type})}, {kNotMultiples, Json::array({1})}};
    } else {
      others.push_back(type);
    }
  }
  Json result = Json::array();
  if (!others.empty()) result.push_back(Json{{"type", std::move(others)}});
  if (!fractions.is_null()) result.push_back(std::move(fractions));
  return result;
}

/// Those between the numbers of a list.
Json other_numbers(Json numbers) {
  std::ranges::sort(numbers.get_ref<Json::array_t&>(), [](const Json& a, const Json& b) {
    return less(number_of("enum", a), number_of("enum", b));
  });
  Json others = Json::array();
  Json next{{"type", Json::array({"number"})}};
  for (const Json& number : numbers) {
    Json before = next;
    before["exclusiveMaximum"] = number;
    others.push_back(std::move(before));
    next["exclusiveMinimum"] = number;
  }
  others.push_back(std::move(next));
  return others;
}

/// Arrays with fewer items that match, or more.
Json other_counts(const Json& counted) {
  Json others = Json::array();
  const auto add = [&](const Json& one, const char* key, std::uint32_t count) {
    Json other{{"type", Json::array({"array"})}, {"contains", one["contains"]}, {"minContains", 0}};
    other[key] = count;
    others.push_back(std::move(other));
  };
  for (const Json& one : counted) {
    const auto min = one["minContains"].get<std::uint32_t>();
    if (min > 0) add(one, "maxContains", min - 1);
    if (one.contains("maxContains"))
      add(one, "minContains", one["maxContains"].get<std::uint32_t>() + 1);
  }
  return others;
}

bool requires_property(const Json& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() &&
         std::find(required->begin(), required->end(), Json(name)) != required->end();
}

}  // namespace

Json SchemaResolver::exclusive_branches(const Json& schema) {
  const Nesting nesting(nesting_, kMaxNestedKeywords, "'oneOf', 'not' and 'if'");
  const Json& branches = list_of_schemas("oneOf", schema["oneOf"]);
  // What stands beside the branches holds, too, and may be what tells them apart.
  Json beside = Json::object();
  for (const char* key : {"type", "required", "properties"})
    if (schema.contains(key)) beside[key] = schema[key];
  beside = resolve(beside);
  std::vector<Json> resolved;
  std::vector<Json> together;
  for (const Json& branch : branches) {
    resolved.push_back(resolve(branch));
    together.push_back(merge(beside, resolved.back()));
  }
  Json result = Json::array();
  for (std::size_t i = 0; i < resolved.size(); ++i) {
    Json parts = Json::array({branches[i]});
    for (std::size_t j = 0; j < resolved.size(); ++j) {
      if (i == j || are_disjoint(together[i], together[j], 0)) continue;
      const auto others = negation(resolved[j], 0);
      if (!others)
        refuse(
            "'oneOf' is supported where its branches exclude each other by type, constant or "
            "properties, or where it can be said what is none of another branch");
      parts.push_back(any_of(*others));
    }
    result.push_back(parts.size() == 1 ? parts[0] : Json{{"allOf", std::move(parts)}});
  }
  return result;
}

Json SchemaResolver::negation_or_refuse(const Json& schema, const std::string& keyword) {
  const Nesting nesting(nesting_, kMaxNestedKeywords, "'oneOf', 'not' and 'if'");
  const auto others = negation(resolve(schema), 0);
  if (!others)
    refuse(keyword +
           " is supported for types, constants, texts, bounds, multiples, 'required' and "
           "'properties'");
  return others->empty() ? Json::array({false}) : *others;
}

Json SchemaResolver::conditional(const Json& schema) {
  const Json& condition = schema["if"];
  const auto branch = [&](const char* key) {
    const auto found = schema.find(key);
    return found == schema.end() ? Json(true) : *found;
  };
  if (branch("then") == Json(true) && branch("else") == Json(true)) return Json::array({true});
  Json result = Json::array({all_of(condition, branch("then"))});
  for (const Json& other : negation_or_refuse(condition, "'if'"))
    result.push_back(all_of(other, branch("else")));
  return result;
}

std::optional<Json> SchemaResolver::others(const Json& schema) {
  return negation(resolve(schema), 0);
}

std::optional<Json> SchemaResolver::negation(const Json& schema, int depth) {
  if (schema == Json(true)) return Json::array();
  if (schema == Json(false)) return Json::array({true});
  if (depth > kMaxNegationDepth) return std::nullopt;
  Json others = Json::array();
  for (const auto& [key, argument] : schema.items()) {
    auto more = negation_of(key, argument, schema, depth);
    if (!more) return std::nullopt;
    for (Json& one : *more) others.push_back(std::move(one));
    if (others.size() > kMaxNegations) return std::nullopt;
  }
  return others;
}

std::optional<Json> SchemaResolver::negation_of(const std::string& key, const Json& argument,
                                                const Json& schema, int depth) {
  const auto only = [](const char* type, const char* name, const Json& value) {
    return Json::array({Json{{"type", Json::array({type})}, {name, value}}});
  };
  const auto below = [&](const char* type, const char* name) {
    const std::uint32_t count = count_of(key, argument);
    return count == 0 ? Json::array() : only(type, name, count - 1);
  };
  const auto above = [&](const char* type, const char* name) {
    return only(type, name, std::uint64_t{count_of(key, argument)} + 1);
  };
  if (key == "type") return other_types(argument);
  if (key == "enum") return other_values(argument, depth);
  if (key == "multipleOf") return only("number", kNotMultiples, Json::array({argument}));
  if (key == kNotMultiples) {
    Json others = Json::array();
    for (const Json& one : argument) others.push_back(only("number", "multipleOf", one)[0]);
    return others;
  }
  if (key == "minimum") return only("number", "exclusiveMaximum", argument);
  if (key == "exclusiveMinimum") return only("number", "maximum", argument);
  if (key == "maximum") return only("number", "exclusiveMinimum", argument);
  if (key == "exclusiveMaximum") return only("number", "minimum", argument);
  if (key == "minLength") return below("string", "maxLength");
  if (key == "maxLength") return above("string", "minLength");
  if (key == "minItems") return below("array", "maxItems");
  if (key == "maxItems") return above("array", "minItems");
  if (key == "minProperties") return below("object", "maxProperties");
  if (key == "maxProperties") return above("object", "minProperties");
  if (key == "required") {
    Json others = Json::array();
    for (const Json& name : argument) {
      Json one = without(name.get<std::string>());
      one["type"] = Json::array({"object"});
      others.push_back(std::move(one));
    }
    return others;
  }
  if (key == "properties") return other_properties(argument, depth);
  if (key == "pattern") {
    Json others = Json::array();
    for (const Json& one : argument.is_array() ? argument : Json::array({argument})) {
      if (!one.is_string()) return std::nullopt;
      others.push_back(only("string", kNotPatterns, Json::array({one}))[0]);
    }
    return others;
  }
  if (key == kNotPatterns) {
    Json others = Json::array();
    for (const Json& one : argument) others.push_back(only("string", "pattern", one)[0]);
    return others;
  }
  if (key == kNotTexts) return Json::array({Json{{"enum", argument}}});
  if (key == kAnyOfs) return other_branches(argument, depth);
  if (key == kContains) return other_counts(argument);
  if (key == "prefixItems") return other_prefix(argument, depth);
  if (key == "items" && argument != Json(true) && !schema.contains("prefixItems")) {
    const auto others = negation(resolve(argument), depth + 1);
    if (!others) return std::nullopt;
    return others->empty() ? Json::array() : only("array", "contains", any_of(*others));
  }
  if (key == "additionalProperties" && schema.contains("patternProperties")) return std::nullopt;
  static const std::array<std::string_view, 6> kOpen{"additionalProperties", "items",
                                                     "patternProperties",    "propertyNames",
                                                     "uniqueItems",          "format"};
  if (std::find(kOpen.begin(), kOpen.end(), key) == kOpen.end()) return Json::array();
  const bool says_nothing =
      key == "uniqueItems" ? argument == Json(false) : argument == Json(true) || argument.empty();
  return says_nothing ? std::optional(Json::array()) : std::nullopt;
}

std::optional<Json> SchemaResolver::other_values(const Json& values, int depth) {
  Json types = Json::array();
  Json texts = Json::array();
  Json numbers = Json::array();
  Json booleans = Json::array();
  for (const Json& value : values) {
    types.push_back(value.is_number() ? "number" : type_of(value));
    if (value.is_string()) texts.push_back(value);
    if (value.is_number()) numbers.push_back(value);
  }
  for (const bool value : {true, false})
    if (std::find(values.begin(), values.end(), Json(value)) == values.end())
      booleans.push_back(value);
  Json others = other_types(types);
  if (!texts.empty())
    others.push_back(Json{{"type", Json::array({"string"})}, {kNotTexts, std::move(texts)}});
  if (booleans.size() == 1) others.push_back(Json{{"enum", std::move(booleans)}});
  if (!numbers.empty())
    for (Json& one : other_numbers(std::move(numbers))) others.push_back(std::move(one));
  for (const char* type : {"array", "object"}) {
    if (std::find(types.begin(), types.end(), Json(type)) == types.end()) continue;
    auto structures = other_structures(values, type, depth);
    if (!structures) return std::nullopt;
    others.push_back(*std::move(structures));
  }
  return others;
}

/// Values of the type that are equal to none of these.
std::optional<Json> SchemaResolver::other_structures(const Json& values, const char* type,
                                                     int depth) {
  Json all = Json::array();
  for (const Json& value : values) {
    if (type_of(value) != type) continue;
    Json equal{{"type", Json::array({type})}};
    if (value.is_array()) {
      Json items = Json::array();
      for (const Json& item : value) items.push_back(Json{{"enum", Json::array({item})}});
      equal["minItems"] = value.size();
      equal["maxItems"] = value.size();
      equal["prefixItems"] = std::move(items);
    } else {
      Json names = Json::array();
      Json properties = Json::object();
      for (const auto& [name, inner] : value.items()) {
        names.push_back(name);
        properties[name] = Json{{"enum", Json::array({inner})}};
      }
      equal["maxProperties"] = value.size();
      equal["required"] = std::move(names);
      equal["properties"] = std::move(properties);
    }
    const auto others = negation(equal, depth + 1);
    if (!others) return std::nullopt;
    all.push_back(any_of(*others));
  }
  return Json{{"type", Json::array({type})}, {"allOf", std::move(all)}};
}

std::optional<Json> SchemaResolver::other_properties(const Json& properties, int depth) {
  if (!properties.is_object()) return std::nullopt;
  Json others = Json::array();
  for (const auto& [name, inner] : properties.items()) {
    const auto values = negation(resolve(inner), depth + 1);
    if (!values) return std::nullopt;
    if (values->empty()) continue;
    // The order of the properties stays that of the schema.
    Json all = Json::object();
    for (const auto& [each, unused] : properties.items()) all[each] = true;
    all[name] = any_of(*values);
    others.push_back(Json{{"type", Json::array({"object"})},
                          {"required", Json::array({name})},
                          {"properties", std::move(all)}});
  }
  return others;
}

std::optional<Json> SchemaResolver::other_prefix(const Json& prefix, int depth) {
  if (!prefix.is_array()) return std::nullopt;
  Json others = Json::array();
  Json before = Json::array();
  for (const Json& item : prefix) {
    const auto values = negation(resolve(item), depth + 1);
    if (!values) return std::nullopt;
    if (!values->empty()) {
      Json items = before;
      items.push_back(any_of(*values));
      others.push_back(Json{{"type", Json::array({"array"})},
                            {"minItems", items.size()},
                            {"prefixItems", std::move(items)}});
    }
    before.push_back(true);
  }
  return others;
}

std::optional<Json> SchemaResolver::other_branches(const Json& groups, int depth) {
  Json others = Json::array();
  for (const Json& group : groups) {
    Json all = Json::array();
    for (const Json& branch : group) {
      const auto values = negation(resolve(branch), depth + 1);
      if (!values) return std::nullopt;
      all.push_back(any_of(*values));
    }
    others.push_back(Json{{"allOf", std::move(all)}});
  }
  return others;
}

bool SchemaResolver::are_disjoint(const Json& a, const Json& b, int depth) {
  if (a == Json(false) || b == Json(false)) return true;
  if (!a.is_object() || !b.is_object() || depth > 8) return false;
  for (const auto& [with, than] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    if (!with->contains(kAnyOfs)) continue;
    Json base = *with;
    base.erase(kAnyOfs);
    const Json& other = *than;
    for (const Json& group : (*with)[kAnyOfs]) {
      const bool all = std::all_of(group.begin(), group.end(), [&](const Json& branch) {
        return are_disjoint(merge(base, resolve(branch)), other, depth + 1);
      });
      if (all) return true;
    }
  }
  const TypeSet common = types_of(a) & types_of(b);
  if (common.empty()) return true;
  if (a.contains("enum") && b.contains("enum")) {
    for (const Json& one : a["enum"])
      for (const Json& other : b["enum"])
        if (one == other) return false;
    return true;
  }
  TypeSet objects;
  objects.add("object");
  return common == objects &&
         (excludes_required(a, b) || excludes_required(b, a) || differ_in_a_property(a, b, depth));
}

bool SchemaResolver::excludes_required(const Json& a, const Json& b) {
  const auto required = b.find("required");
  if (required == b.end()) return false;
  const Json& known = property(a, "properties");
  return std::any_of(required->begin(), required->end(), [&](const Json& one) {
    const auto& name = one.get_ref<const std::string&>();
    const auto own = known.find(name);
    return (own != known.end() ? *own : of_unnamed(a, name)) == Json(false);
  });
}

bool SchemaResolver::differ_in_a_property(const Json& a, const Json& b, int depth) {
  const Json& others = property(b, "properties");
  for (const auto& [name, inner] : property(a, "properties").items()) {
    if (!others.contains(name) || !requires_property(a, name) || !requires_property(b, name))
      continue;
    if (are_disjoint(resolve(inner), resolve(others[name]), depth + 1)) return true;
  }
  return false;
}

}  // namespace troupe::schema
