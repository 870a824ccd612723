// unevaluatedProperties and unevaluatedItems, in words that a grammar can hold: a schema is split
// in alternatives of which is known what they evaluate, and each is closed by additionalProperties
// or items. Where a value matches more branches of an anyOf, more is evaluated: it is enough that
// some set of branches matches and evaluates all that is there.

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_resolver.hpp"

namespace troupe::schema {
namespace {

constexpr std::size_t kMaxAlternatives = 64;
constexpr std::size_t kMaxBranches = 4;  ///< of an anyOf that evaluates anything
constexpr int kMaxDepth = 32;            ///< of references and branches within each other

/// What keywords that apply to the value itself evaluate of it.
struct Evaluated {
  std::vector<std::string> names;
  std::vector<std::string> patterns;
  bool all_properties = false;
  std::size_t num_items = 0;
  bool all_items = false;
  bool has_contains = false;

  void add(const Evaluated& other) {
    const auto join = [](std::vector<std::string>& to, const std::vector<std::string>& from) {
      for (const std::string& one : from)
        if (std::find(to.begin(), to.end(), one) == to.end()) to.push_back(one);
    };
    join(names, other.names);
    join(patterns, other.patterns);
    all_properties = all_properties || other.all_properties;
    num_items = std::max(num_items, other.num_items);
    all_items = all_items || other.all_items;
    has_contains = has_contains || other.has_contains;
  }
  bool operator==(const Evaluated&) const = default;
};

/// By the keywords next to it, without those that apply other schemas to the same value.
Evaluated evaluated_by(const Json& schema) {
  Evaluated result;
  for (const auto& [name, inner] : property(schema, "properties").items())
    result.names.push_back(name);
  for (const auto& [pattern, inner] : property(schema, "patternProperties").items())
    result.patterns.push_back(pattern);
  result.all_properties = schema.contains("additionalProperties");
  const auto prefix = schema.find("prefixItems");
  if (prefix != schema.end()) result.num_items = prefix->size();
  const auto items = schema.find("items");
  if (items != schema.end() && items->is_array()) {
    result.num_items = items->size();
    result.all_items = schema.contains("additionalItems");
  } else {
    result.all_items = items != schema.end();
  }
  result.has_contains = schema.contains("contains");
  return result;
}

/// A schema for values of which nothing is there but what is evaluated, and what `unevaluated`
/// takes.
Json closed(const Json& unevaluated, const Evaluated& evaluated) {
  Json result = Json::object();
  const auto properties = unevaluated.find("unevaluatedProperties");
  if (properties != unevaluated.end() && !evaluated.all_properties) {
    for (const std::string& name : evaluated.names) result["properties"][name] = true;
    for (const std::string& pattern : evaluated.patterns)
      result["patternProperties"][pattern] = true;
    result["additionalProperties"] = *properties;
  }
  const auto items = unevaluated.find("unevaluatedItems");
  if (items != unevaluated.end() && !evaluated.all_items) {
    if (evaluated.has_contains && *items != Json(true))
      refuse("'unevaluatedItems' beside 'contains' is not supported");
    for (std::size_t i = 0; i < evaluated.num_items; ++i) result["prefixItems"].push_back(true);
    result["items"] = *items;
  }
  return result.empty() ? Json(true) : result;
}

}  // namespace

struct SchemaResolver::Alternative {
  Json schema = true;
  Evaluated evaluated = {};
};

bool SchemaResolver::has_unevaluated(const Json& schema) {
  const auto says = [&](const char* key) {
    const auto found = schema.find(key);
    return found != schema.end() && *found != Json(true);
  };
  return says("unevaluatedProperties") || says("unevaluatedItems");
}

Json SchemaResolver::without_unevaluated(const Json& schema) {
  const Nesting nesting(nesting_, kMaxDepth, "'unevaluatedProperties' and 'unevaluatedItems'");
  Json result = Json::array();
  for (const Alternative& one : alternatives(schema, 0))
    result.push_back(all_of(one.schema, closed(schema, one.evaluated)));
  return any_of(result);
}

namespace {

/// Each of the one with each of the other.
template <class Alternatives>
Alternatives combined(const Alternatives& some, const Alternatives& others) {
  if (some.size() * others.size() > kMaxAlternatives)
    refuse("'unevaluatedProperties' or 'unevaluatedItems' beside more than " +
           std::to_string(kMaxAlternatives) + " ways through other keywords is not supported");
  Alternatives result;
  for (const auto& a : some) {
    for (const auto& b : others) {
      auto both = a;
      both.schema = all_of(a.schema, b.schema);
      both.evaluated.add(b.evaluated);
      result.push_back(std::move(both));
    }
  }
  return result;
}

/// One in place of several, if they evaluate the same.
template <class Alternatives>
void join_equal(Alternatives& all) {
  if (all.size() < 2) return;
  for (const auto& one : all)
    if (!(one.evaluated == all.front().evaluated)) return;
  Json schemas = Json::array();
  for (const auto& one : all) schemas.push_back(one.schema);
  all.resize(1);
  all.front().schema = any_of(schemas);
}

}  // namespace

std::vector<SchemaResolver::Alternative> SchemaResolver::part_alternatives(const Json& schema,
                                                                           int depth) {
  auto result = alternatives(schema, depth);
  if (!schema.is_object()) return result;
  for (Alternative& one : result) {
    if (has_unevaluated(schema)) one.schema = all_of(schema, one.schema);
    one.evaluated.all_properties =
        one.evaluated.all_properties || schema.contains("unevaluatedProperties");
    one.evaluated.all_items = one.evaluated.all_items || schema.contains("unevaluatedItems");
  }
  return result;
}

std::vector<SchemaResolver::Alternative> SchemaResolver::alternatives(const Json& schema,
                                                                      int depth) {
  if (depth > kMaxDepth)
    refuse(
        "references and branches beside 'unevaluatedProperties' or 'unevaluatedItems' lead to "
        "each other more than " +
        std::to_string(kMaxDepth) + " times");
  if (!schema.is_object()) return {{.schema = schema}};
  using Alternatives = std::vector<Alternative>;
  Alternatives before{{}};  // properties have the order of resolve()
  Alternatives behind{{}};
  const auto part = [&](const Json& one) { return part_alternatives(one, depth + 1); };
  const auto add = [&](Alternatives more) {
    join_equal(more);
    behind = combined(behind, more);
  };
  const auto append = [](Alternatives& to, const Alternatives& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  Json rest = Json::object();
  for (const auto& [key, argument] : schema.items()) {
    if (key == "$ref") {
      before = combined(before, part(target_of(argument)));
    } else if (key == "allOf") {
      for (const Json& one : list_of_schemas(key, argument)) before = combined(before, part(one));
    } else if (key == "anyOf") {
      std::vector<Alternatives> branches;
      Alternatives together;
      for (const Json& one : list_of_schemas(key, argument)) {
        branches.push_back(part(one));
        append(together, branches.back());
      }
      join_equal(together);
      if (together.size() > 1) {
        if (branches.size() > kMaxBranches)
          refuse("'unevaluatedProperties' or 'unevaluatedItems' beside an 'anyOf' of more than " +
                 std::to_string(kMaxBranches) + " branches is not supported");
        together.clear();
        for (std::size_t set = 1; set < std::size_t{1} << branches.size(); ++set) {
          Alternatives of_set{{}};
          for (std::size_t i = 0; i < branches.size(); ++i)
            if ((set >> i & 1) != 0) of_set = combined(of_set, branches[i]);
          append(together, of_set);
        }
      }
      add(std::move(together));
    } else if (key == "oneOf") {
      const Json exclusive = exclusive_branches(schema);
      Alternatives branches;
      for (std::size_t i = 0; i < argument.size(); ++i)
        append(branches, combined({{.schema = exclusive[i]}}, part(argument[i])));
      add(std::move(branches));
    } else if (key == "if") {
      const Json otherwise = any_of(negation_or_refuse(argument, "'if'"));
      Alternatives branches = part(argument);
      if (schema.contains("then")) branches = combined(branches, part(schema["then"]));
      Alternatives others{{.schema = otherwise}};
      if (schema.contains("else")) others = combined(others, part(schema["else"]));
      append(branches, others);
      add(std::move(branches));
    } else if (key == "dependentSchemas" || key == "dependencies") {
      for (const auto& [name, needed] : property(schema, key.c_str()).items()) {
        if (!needed.is_object() && !needed.is_boolean()) {
          rest["dependentRequired"][name] = needed.is_string() ? Json::array({needed}) : needed;
          continue;
        }
        Alternatives branches{{.schema = without(name)}};
        append(branches, combined({{.schema = {{"required", Json::array({name})}}}}, part(needed)));
        add(std::move(branches));
      }
    } else if (key != "then" && key != "else" && key != "unevaluatedProperties" &&
               key != "unevaluatedItems") {
      if (key == "dependentRequired" && argument.is_object() && rest.contains(key)) {
        rest[key].update(argument);
      } else {
        rest[key] = argument;
      }
    }
  }
  const Evaluated evaluated = evaluated_by(rest);
  before = combined(before, {{.schema = rest.empty() ? Json(true) : rest, .evaluated = evaluated}});
  return combined(before, behind);
}

}  // namespace troupe::schema
