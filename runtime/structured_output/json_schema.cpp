#include "runtime/structured_output/json_schema.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/json_grammar.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
constexpr int kMaxResolutions = 64;                ///< of references and allOf within each other
constexpr std::size_t kMaxMerges = 20'000;         ///< schemas joined for one grammar
constexpr std::size_t kMaxPatterns = 4;            ///< patternProperties of one object
constexpr std::size_t kMaxUniqueValues = 8;        ///< of an array with uniqueItems
constexpr std::size_t kMaxCountedStates = 20'000;  ///< of an object with a number of properties

constexpr std::size_t kMaxNegations = 64;  ///< schemas that together say what one does not
constexpr int kMaxNegationDepth = 8;       ///< of properties within each other
constexpr int kMaxNestedKeywords = 16;     ///< of those that need negation
constexpr int kMaxMergedDepth = 100;
constexpr int kMaxAloneDepth = 4;

/// These are ours, and no client's schema has them behind resolve(). "$anyOfs": a list of lists of
/// schemas, one of each list holds. The others: strings are none of these texts, and match none of
/// these patterns.
constexpr const char* kAnyOfs = "$anyOfs";
constexpr const char* kNotTexts = "\x01notTexts";
constexpr const char* kNotPatterns = "\x01notPatterns";

const std::array<std::string_view, 13> kRefused{
    "contains",    "minContains",   "maxContains",    "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "extends",
    "disallow",    "divisibleBy",   "$anyOfs"};

/// CompiledGrammar's error for a grammar without a text.
constexpr std::string_view kNoText = "no text fits the grammar";

/// Formats of the specification. Others are the schema's own, of which nobody else knows anything:
/// they say nothing about the text of a value.
const std::array<std::string_view, 19> kStandardFormats{
    "date-time", "date",          "time", "duration",     "email",        "idn-email",
    "hostname",  "idn-hostname",  "ipv4", "ipv6",         "uri",          "uri-reference",
    "iri",       "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer",
    "regex"};

/// Formats that say nothing about the text of a value.
const std::array<std::string_view, 8> kFormatsWithoutText{"int32",    "int64", "float",  "double",
                                                          "password", "byte",  "binary", "decimal"};

[[noreturn]] void refuse(const std::string& what) { throw GrammarRefused("json_schema: " + what); }

std::string quote(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
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

constexpr std::array<std::string_view, 7> kTypes{"null",   "boolean", "integer", "number",
                                                 "string", "array",   "object"};

class SchemaConversion {
 public:
  SchemaConversion(GrammarBuilder& builder, const Json& root, const JsonGrammarOptions& options)
      : builder_(builder), json_(builder, options), root_(root), options_(options) {}

  void run(GrammarRuleId start) {
    find_ids(root_, true);
    builder_.set_body(start, value(root_));
    while (!pending_.empty()) {
      const auto [rule, schema] = std::move(pending_.front());
      pending_.pop_front();
      builder_.set_body(rule, resolved_value(resolve(schema)));
    }
  }

 private:
  // ---- References ----------------------------------------------------------------------------

  void find_ids(const Json& schema, bool is_root) {
    if (schema.is_array()) {
      for (const Json& item : schema) find_ids(item, false);
      return;
    }
    if (!schema.is_object()) return;
    for (const auto& [key, inner] : schema.items()) {
      if (key == kNotTexts || key == kNotPatterns)
        refuse("the keyword " + quote(key) + " is unknown");
      if ((key == "$id" || key == "id") && inner.is_string()) {
        const auto& id = inner.get_ref<const std::string&>();
        if (is_root) {
          root_id_ = id.substr(0, id.find('#'));
        } else {
          ids_.emplace(id, &schema);
        }
      } else if (key == "$anchor" && inner.is_string()) {
        ids_.emplace("#" + inner.get<std::string>(), &schema);
      } else if (key != "enum" && key != "const" && key != "default" && key != "examples") {
        find_ids(inner, false);
      }
    }
  }

  const Json& target_of(const Json& reference) {
    if (!reference.is_string()) refuse("'$ref' must be a string");
    std::string text = reference.get<std::string>();
    if (!root_id_.empty() && text.starts_with(root_id_)) text.erase(0, root_id_.size());
    if (text.empty() || text == "#") return root_;
    const auto known = ids_.find(text);
    if (known != ids_.end()) return *known->second;
    if (!text.starts_with("#/")) refuse("'$ref' " + quote(text) + " does not lead into the schema");
    const Json* at = &root_;
    for (std::size_t begin = 2; begin <= text.size();) {
      const std::size_t end = std::min(text.find('/', begin), text.size());
      std::string name;
      for (std::size_t i = begin; i < end; ++i) {
        if (text[i] == '~' && i + 1 < end) {
          name.push_back(text[++i] == '1' ? '/' : '~');
        } else if (text[i] == '%' && i + 2 < end) {
          name.push_back(
              static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16)));
          i += 2;
        } else {
          name.push_back(text[i]);
        }
      }
      if (at->is_object() && at->contains(name)) {
        at = &(*at)[name];
      } else if (at->is_array() && !name.empty() && name.size() < 8 &&
                 name.find_first_not_of("0123456789") == std::string::npos &&
                 std::stoul(name) < at->size()) {
        at = &(*at)[std::stoul(name)];
      } else {
        refuse("'$ref' " + quote(text) + " does not lead into the schema");
      }
      begin = end + 1;
    }
    return *at;
  }

  // ---- Joining schemas -----------------------------------------------------------------------

  static Json all_of(const Json& a, const Json& b) {
    if (a == b || b == Json(true)) return a;
    if (a == Json(true)) return b;
    return Json{{"allOf", Json::array({a, b})}};
  }

  /// The schema without $ref, allOf, anyOf, oneOf and const, its keywords checked: false, true or
  /// an object.
  Json resolve(const Json& schema, int depth = 0) {
    if (depth > kMaxResolutions)
      refuse("references and 'allOf' lead to each other more than " +
             std::to_string(kMaxResolutions) + " times");
    if (schema.is_boolean()) return schema;
    if (!schema.is_object()) refuse("a schema must be an object or a boolean");
    Json own = Json::object();
    Json result = true;
    Json any_ofs = Json::array();
    for (const auto& [key, argument] : schema.items()) {
      if (std::find(kRefused.begin(), kRefused.end(), key) != kRefused.end()) {
        if (key == "unevaluatedProperties" && argument == Json(true)) continue;
        if (key == "unevaluatedItems" && argument == Json(true)) continue;
        if (key == "unevaluatedProperties" && argument == Json(false) && is_flat(schema)) {
          if (!schema.contains("additionalProperties")) own["additionalProperties"] = false;
          continue;
        }
        refuse("the keyword " + quote(key) + " is not supported");
      }
      if (key == "$ref") {
        result = merge(result, resolve(target_of(argument), depth + 1));
      } else if (key == "allOf") {
        for (const Json& part : list_of_schemas(key, argument))
          result = merge(result, resolve(part, depth + 1));
      } else if (key == "anyOf") {
        any_ofs.push_back(list_of_schemas(key, argument));
      } else if (key == "oneOf") {
        any_ofs.push_back(exclusive_branches(list_of_schemas(key, argument)));
      } else if (key == "not") {
        any_ofs.push_back(negation_or_refuse(argument, "'not'"));
      } else if (key == "if") {
        any_ofs.push_back(conditional(schema));
      } else if (key == "then" || key == "else") {
        continue;  // of 'if'
      } else if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") {
        add_dependent(key, argument, any_ofs);
      } else if (key == "const") {
        own["enum"] = Json::array({argument});
      } else if (key == "type") {
        Json types = argument.is_string() ? Json::array({argument}) : argument;
        if (!types.is_array()) refuse("'type' must be a string or an array");
        for (const Json& type : types)
          if (!type.is_string() ||
              std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end())
            refuse("'type' " + dump(type) + " is unknown");
        own["type"] = std::move(types);
      } else {
        if (key == "enum" && !argument.is_array()) refuse("'enum' must be a list");
        if (key == "required" && (!argument.is_array() ||
                                  !std::all_of(argument.begin(), argument.end(),
                                               [](const Json& name) { return name.is_string(); })))
          refuse("'required' must be a list of names");
        own[key] = argument;
      }
    }
    if (own.contains("enum") && schema.contains("enum") && schema.contains("const")) {
      own["enum"] = Json::array({schema["const"]});
      own = merge(own, Json{{"enum", schema["enum"]}});
      if (!own.is_object()) return own;
    }
    old_drafts(own);
    if (options_.disable_additional_properties && own.contains("properties") &&
        !own.contains("additionalProperties"))
      own["additionalProperties"] = false;
    if (!any_ofs.empty()) own[kAnyOfs] = std::move(any_ofs);
    return merge(result, own);
  }

  /// Without parts of which unevaluatedProperties would have to know.
  static bool is_flat(const Json& schema) {
    return !schema.contains("$ref") && !schema.contains("allOf") && !schema.contains("anyOf") &&
           !schema.contains("oneOf");
  }

  static const Json& list_of_schemas(const std::string& key, const Json& argument) {
    if (!argument.is_array() || argument.empty()) refuse(quote(key) + " must be a list of schemas");
    return argument;
  }

  /// What earlier drafts wrote in other ways.
  static void old_drafts(Json& schema) {
    for (const auto& [bound, exclusive] :
         {std::pair{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}}) {
      if (!schema.contains(exclusive) || !schema[exclusive].is_boolean()) continue;
      const bool excludes = schema[exclusive].get<bool>();
      schema.erase(exclusive);
      if (!excludes || !schema.contains(bound)) continue;
      schema[exclusive] = schema[bound];
      schema.erase(bound);
    }
    if (schema.contains("items") && schema["items"].is_array()) {
      Json items = schema["items"];
      schema.erase("items");
      schema["prefixItems"] = std::move(items);
      if (schema.contains("additionalItems")) schema["items"] = schema["additionalItems"];
    }
    schema.erase("additionalItems");
  }

  static Decimal number_of(const std::string& key, const Json& value) {
    if (!value.is_number()) refuse(quote(key) + " must be a number");
    return Decimal::parse(dump(value));
  }

  static std::uint32_t count_of(const std::string& key, const Json& value) {
    if (!value.is_number() || value.get<double>() < 0 ||
        value.get<double>() != std::floor(value.get<double>()))
      refuse(quote(key) + " must be a whole number that is not negative");
    return static_cast<std::uint32_t>(std::min(value.get<double>(), 4e9));
  }

  static bool includes_type(const Json& types, std::string_view type) {
    for (const Json& t : types) {
      const auto& name = t.get_ref<const std::string&>();
      if (name == type || (name == "number" && type == "integer")) return true;
    }
    return false;
  }

  static const Json& property(const Json& schema, const char* key) {
    static const Json kNone = Json::object();
    const auto found = schema.find(key);
    if (found == schema.end()) return kNone;
    if (!found->is_object()) refuse(quote(key) + " must be an object");
    return *found;
  }

  /// What the schema says of a property that it does not name.
  Json of_unnamed(const Json& schema, const std::string& name) {
    Json result = true;
    bool matched = false;
    for (const auto& [pattern, inner] : property(schema, "patternProperties").items()) {
      if (!name_matches(pattern, name)) continue;
      result = all_of(result, inner);
      matched = true;
    }
    return matched ? result : additional(schema);
  }

  static Json additional(const Json& schema) {
    const auto found = schema.find("additionalProperties");
    return found == schema.end() ? Json(true) : *found;
  }

  /// A schema for what both take. Pre: both are results of resolve().
  Json merge(const Json& a, const Json& b) {
    if (++num_merges_ > kMaxMerges)
      refuse("more than " + std::to_string(kMaxMerges) + " schemas to be joined");
    if (a == Json(false) || b == Json(false)) return false;
    if (a == Json(true) || a.empty()) return b;
    if (b == Json(true) || b.empty()) return a;
    Json result = a;
    merge_objects(a, b, result);
    merge_arrays(a, b, result);
    for (const auto& [key, value] : b.items()) {
      if (key == "properties" || key == "patternProperties" || key == "additionalProperties" ||
          key == "items" || key == "prefixItems")
        continue;
      const auto mine = result.find(key);
      if (mine == result.end()) {
        result[key] = value;
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
      } else if (key == "required" || key == kAnyOfs || key == kNotTexts || key == kNotPatterns) {
        for (const Json& one : value) mine->push_back(one);
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

  static Json common_multiple(const Json& a, const Json& b) {
    if (!a.is_number_integer() || !b.is_number_integer() || a.get<std::int64_t>() <= 0 ||
        b.get<std::int64_t>() <= 0 || a.get<std::int64_t>() > 1 << 30 ||
        b.get<std::int64_t>() > 1 << 30)
      refuse("two values of 'multipleOf' that hold at once are supported for integers only");
    return std::lcm(a.get<std::int64_t>(), b.get<std::int64_t>());
  }

  void merge_objects(const Json& a, const Json& b, Json& result) {
    const auto concerns = [](const Json& schema) {
      return schema.contains("properties") || schema.contains("patternProperties") ||
             schema.contains("additionalProperties");
    };
    if (!concerns(b)) return;
    if (!concerns(a)) {
      for (const char* key : {"properties", "patternProperties", "additionalProperties"})
        if (b.contains(key)) result[key] = b[key];
      return;
    }
    Json properties = Json::object();
    const Json& of_a = property(a, "properties");
    const Json& of_b = property(b, "properties");
    for (const auto& [name, inner] : of_a.items()) {
      const auto other = of_b.find(name);
      properties[name] = all_of(inner, other != of_b.end() ? *other : of_unnamed(b, name));
    }
    for (const auto& [name, inner] : of_b.items())
      if (!of_a.contains(name)) properties[name] = all_of(of_unnamed(a, name), inner);
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

  static Json item_schema(const Json& schema, std::size_t index) {
    const auto prefix = schema.find("prefixItems");
    if (prefix != schema.end() && index < prefix->size()) return (*prefix)[index];
    const auto items = schema.find("items");
    return items == schema.end() ? Json(true) : *items;
  }

  static void merge_arrays(const Json& a, const Json& b, Json& result) {
    if (!b.contains("items") && !b.contains("prefixItems")) return;
    std::size_t num_prefix = 0;
    for (const Json& schema : {a, b})
      if (schema.contains("prefixItems"))
        num_prefix = std::max(num_prefix, schema["prefixItems"].size());
    Json prefix = Json::array();
    for (std::size_t i = 0; i < num_prefix; ++i)
      prefix.push_back(all_of(item_schema(a, i), item_schema(b, i)));
    if (num_prefix > 0) result["prefixItems"] = std::move(prefix);
    result["items"] = all_of(item_schema(a, num_prefix), item_schema(b, num_prefix));
  }

  // ---- oneOf, not, if, dependencies ----------------------------------------------------------

  /// Counts what stands within each other, or leads to each other.
  class Nesting {
   public:
    Nesting(int& depth, int limit, std::string_view what) : depth_(depth) {
      if (depth_ == limit)
        refuse(std::string(what) + " stand within each other, or lead to each other, more than " +
               std::to_string(limit) + " times");
      ++depth_;
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

  /// The branches, each without what it shares with others.
  Json exclusive_branches(const Json& branches) {
    const Nesting nesting(nesting_, kMaxNestedKeywords, "'oneOf', 'not' and 'if'");
    std::vector<Json> resolved;
    for (const Json& branch : branches) resolved.push_back(resolve(branch));
    Json result = Json::array();
    for (std::size_t i = 0; i < resolved.size(); ++i) {
      Json parts = Json::array({branches[i]});
      for (std::size_t j = 0; j < resolved.size(); ++j) {
        if (i == j || are_disjoint(resolved[i], resolved[j], 0)) continue;
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

  static Json any_of(const Json& schemas) {
    if (schemas.empty()) return false;
    return schemas.size() == 1 ? schemas[0] : Json{{"anyOf", schemas}};
  }

  /// A list for $anyOfs, also if nothing is allowed.
  Json negation_or_refuse(const Json& schema, const std::string& keyword) {
    const Nesting nesting(nesting_, kMaxNestedKeywords, "'oneOf', 'not' and 'if'");
    const auto others = negation(resolve(schema), 0);
    if (!others)
      refuse(keyword +
             " is supported for types, constants, texts, bounds, 'required' and 'properties'");
    return others->empty() ? Json::array({false}) : *others;
  }

  Json conditional(const Json& schema) {
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

  static Json without(const std::string& property) {
    return Json{{"properties", {{property, false}}}};
  }

  static void add_dependent(const std::string& key, const Json& argument, Json& any_ofs) {
    if (!argument.is_object()) refuse(quote(key) + " must be an object");
    for (const auto& [name, needed] : argument.items()) {
      const bool is_list = needed.is_array() || (key == "dependencies" && needed.is_string());
      if (is_list == (key == "dependentSchemas") && key != "dependencies")
        refuse(quote(key) + " of " + quote(name) + " must be " +
               (is_list ? "a schema" : "a list of names"));
      const Json names = needed.is_string() ? Json::array({needed}) : needed;
      any_ofs.push_back(Json::array({without(name), is_list ? Json{{"required", names}} : needed}));
    }
  }

  /// Schemas that together take exactly the values that this one does not take; nothing if that
  /// cannot be said. `schema`: a result of resolve().
  std::optional<Json> negation(const Json& schema, int depth) {
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

  /// What one keyword of the schema excludes. Keywords that hold for one type exclude values of
  /// that type only.
  std::optional<Json> negation_of(const std::string& key, const Json& argument, const Json& schema,
                                  int depth) {
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
    if (key == "enum") return other_values(argument);
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
    if (key == "additionalProperties" && schema.contains("patternProperties")) return std::nullopt;
    static const std::array<std::string_view, 8> kOpen{
        "additionalProperties", "items",       "patternProperties", "prefixItems",
        "propertyNames",        "uniqueItems", "multipleOf",        "format"};
    if (std::find(kOpen.begin(), kOpen.end(), key) == kOpen.end()) return Json::array();
    const bool says_nothing =
        key == "uniqueItems" ? argument == Json(false) : argument == Json(true) || argument.empty();
    return says_nothing ? std::optional(Json::array()) : std::nullopt;
  }

  /// Whole numbers are numbers: that a number is not whole cannot be said.
  static std::optional<Json> other_types(const Json& types) {
    Json others = Json::array();
    for (const std::string_view type : kTypes) {
      if (includes_type(types, type) || type == "integer") continue;
      if (type == "number" && includes_type(types, "integer")) return std::nullopt;
      others.push_back(type);
    }
    return others.empty() ? Json::array() : Json::array({Json{{"type", std::move(others)}}});
  }

  static std::optional<Json> other_values(const Json& values) {
    Json types = Json::array();
    Json texts = Json::array();
    Json booleans = Json::array();
    for (const Json& value : values) {
      if (value.is_number() || value.is_structured()) return std::nullopt;
      types.push_back(type_of(value));
      if (value.is_string()) texts.push_back(value);
    }
    for (const bool value : {true, false})
      if (std::find(values.begin(), values.end(), Json(value)) == values.end())
        booleans.push_back(value);
    Json others = *other_types(types);
    if (!texts.empty())
      others.push_back(Json{{"type", Json::array({"string"})}, {kNotTexts, std::move(texts)}});
    if (booleans.size() == 1) others.push_back(Json{{"enum", std::move(booleans)}});
    return others;
  }

  std::optional<Json> other_properties(const Json& properties, int depth) {
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

  std::optional<Json> other_branches(const Json& groups, int depth) {
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

  static Json types_of(const Json& schema) {
    if (schema.is_object() && schema.contains("enum")) {
      Json types = Json::array();
      for (const Json& one : schema["enum"]) types.push_back(type_of(one));
      return types;
    }
    if (schema.is_object() && schema.contains("type")) return schema["type"];
    Json all = Json::array();
    for (const std::string_view type : kTypes) all.push_back(type);
    return all;
  }

  bool are_disjoint(const Json& a, const Json& b, int depth) {
    if (a == Json(false) || b == Json(false)) return true;
    if (!a.is_object() || !b.is_object() || depth > 8) return false;
    for (const auto& [with, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      if (!with->contains(kAnyOfs)) continue;
      Json base = *with;
      base.erase(kAnyOfs);
      for (const Json& group : (*with)[kAnyOfs]) {
        const bool all = std::all_of(group.begin(), group.end(), [&](const Json& branch) {
          return are_disjoint(merge(base, resolve(branch)), *other, depth + 1);
        });
        if (all) return true;
      }
    }
    const Json types_a = types_of(a);
    const Json types_b = types_of(b);
    bool common = false;
    bool only_objects = true;
    for (const std::string_view type : kTypes) {
      if (!includes_type(types_a, type) || !includes_type(types_b, type)) continue;
      common = true;
      only_objects = only_objects && type == "object";
    }
    if (!common) return true;
    if (a.contains("enum") && b.contains("enum")) {
      for (const Json& one : a["enum"])
        for (const Json& other : b["enum"])
          if (one == other) return false;
      return true;
    }
    return only_objects && (excludes_required(a, b) || excludes_required(b, a) ||
                            differ_in_a_property(a, b, depth));
  }

  static bool requires_property(const Json& schema, const std::string& name) {
    const auto required = schema.find("required");
    return required != schema.end() &&
           std::find(required->begin(), required->end(), Json(name)) != required->end();
  }

  /// `a` has no place for a property that `b` requires.
  bool excludes_required(const Json& a, const Json& b) {
    const auto required = b.find("required");
    if (required == b.end()) return false;
    const Json& known = property(a, "properties");
    return std::any_of(required->begin(), required->end(), [&](const Json& one) {
      const auto& name = one.get_ref<const std::string&>();
      const auto own = known.find(name);
      return (own != known.end() ? *own : of_unnamed(a, name)) == Json(false);
    });
  }

  /// Both require a property, and no value of it is both.
  bool differ_in_a_property(const Json& a, const Json& b, int depth) {
    const Json& others = property(b, "properties");
    for (const auto& [name, inner] : property(a, "properties").items()) {
      if (!others.contains(name) || !requires_property(a, name) || !requires_property(b, name))
        continue;
      if (are_disjoint(resolve(inner), resolve(others[name]), depth + 1)) return true;
    }
    return false;
  }

  // ---- Values --------------------------------------------------------------------------------

  GrammarNodeId rule_for(const Json& schema) {
    const auto [known, is_new] = rules_.try_emplace(dump(schema), 0);
    if (is_new) {
      known->second = builder_.add_rule();
      pending_.emplace_back(known->second, schema);
    }
    return builder_.rule(known->second);
  }

  /// References and joined schemas may lead back to themselves: they are rules.
  GrammarNodeId value(const Json& schema) {
    if (schema.is_object() && (schema.contains("$ref") || schema.contains("allOf"))) {
      if (schema.size() == 1 && schema.contains("$ref") && &target_of(schema["$ref"]) == &root_)
        return builder_.rule(0);
      return rule_for(schema);
    }
    return resolved_value(resolve(schema));
  }

  GrammarNodeId resolved_value(const Json& schema) {
    if (schema == Json(false)) return builder_.nothing();
    if (schema == Json(true)) return json_.any_value();
    if (schema.contains(kAnyOfs)) {
      Json base = schema;
      const Json groups = schema[kAnyOfs];
      base.erase(kAnyOfs);
      const bool is_alone = groups.size() == 1 && !has_constraint(base);
      if (groups.size() > 1) base[kAnyOfs] = Json(groups.begin() + 1, groups.end());
      std::vector<GrammarNodeId> parts;
      for (const Json& branch : groups[0]) {
        if (is_alone) {
          parts.push_back(value(branch));
          continue;
        }
        const Json merged = merge(base, resolve(branch));
        // An inner list of alternatives keeps its place among the others.
        parts.push_back(merged == Json(false) ? builder_.nothing() : merged_rule(merged));
      }
      return builder_.choice(parts);
    }
    if (schema.contains("enum")) return enumeration(schema);
    const Json types = types_of(schema);
    std::vector<GrammarNodeId> parts;
    if (includes_type(types, "object")) parts.push_back(object(schema));
    if (includes_type(types, "array")) parts.push_back(array(schema));
    if (includes_type(types, "string")) parts.push_back(string(schema));
    if (includes_type(types, "number")) {
      parts.push_back(number(schema, false));
    } else if (includes_type(types, "integer")) {
      parts.push_back(number(schema, true));
    }
    if (includes_type(types, "boolean"))
      parts.push_back(builder_.choice({builder_.literal("true"), builder_.literal("false")}));
    if (includes_type(types, "null")) parts.push_back(builder_.literal("null"));
    return builder_.choice(parts);
  }

  static bool has_constraint(const Json& schema) {
    static const std::array<std::string_view, 10> kAnnotations{
        "title",      "description", "$comment", "default",     "examples",
        "deprecated", "$schema",     "$defs",    "definitions", "readOnly"};
    for (const auto& [key, inner] : schema.items())
      if (std::find(kAnnotations.begin(), kAnnotations.end(), key) == kAnnotations.end())
        return true;
    return false;
  }

  /// A resolved schema as a rule of its own, so that joined schemas may lead back to themselves.
  GrammarNodeId merged_rule(const Json& schema) {
    const auto [known, is_new] = merged_rules_.try_emplace(dump(schema), 0);
    const GrammarRuleId rule = is_new ? known->second = builder_.add_rule() : known->second;
    if (!is_new) return builder_.rule(rule);
    const Nesting nesting(merged_depth_, kMaxMergedDepth, "joined schemas");
    builder_.set_body(rule, resolved_value(schema));
    return builder_.rule(rule);
  }

  GrammarNodeId constant(const Json& value) {
    GrammarBuilder& b = builder_;
    if (value.is_string()) return json_.string_literal(value.get_ref<const std::string&>());
    if (!value.is_structured()) return b.literal(dump(value));
    std::vector<GrammarNodeId> parts{b.byte(value.is_array() ? '[' : '{'), json_.whitespace()};
    bool first = true;
    for (const auto& [key, inner] : value.items()) {
      if (!std::exchange(first, false)) parts.push_back(json_.separator(','));
      if (value.is_object()) {
        parts.push_back(json_.string_literal(key));
        parts.push_back(json_.separator(':'));
      }
      parts.push_back(constant(inner));
    }
    if (!value.empty()) parts.push_back(json_.whitespace());
    parts.push_back(b.byte(value.is_array() ? ']' : '}'));
    return b.sequence(parts);
  }

  /// Its values, without those that the other keywords exclude.
  GrammarNodeId enumeration(const Json& schema) {
    Json others = schema;
    others.erase("enum");
    std::shared_ptr<CompiledGrammar> accepts;
    const bool is_limited =
        has_constraint(others) && !(others.size() == 1 && others.contains("type"));
    if (is_limited)
      accepts =
          compile_alone([&](SchemaConversion& inner) { return inner.resolved_value(others); });
    std::vector<GrammarNodeId> parts;
    for (const Json& one : schema["enum"]) {
      if (schema.contains("type") && !includes_type(schema["type"], type_of(one))) continue;
      if (is_limited) {
        if (accepts == nullptr) continue;
        const auto end = accepts->advance(accepts->start(), dump(one));
        if (!end || !accepts->may_end(*end)) continue;
      }
      parts.push_back(constant(one));
    }
    return builder_.choice(parts);
  }

  /// A grammar of its own, to test texts with while this one is made; null if it has no texts.
  template <class Make>
  std::shared_ptr<CompiledGrammar> compile_alone(const Make& make) {
    static const auto kNoTokens = GrammarVocabulary::make({}, 0);
    GrammarBuilder builder(builder_.limits());
    builder.add_rule();
    const Nesting nesting(alone_depth_, kMaxAloneDepth, "constants with other keywords");
    SchemaConversion inner(builder, root_, options_);
    inner.alone_depth_ = alone_depth_;
    inner.find_ids(root_, true);
    builder.set_body(0, make(inner));
    while (!inner.pending_.empty()) {
      const auto [rule, schema] = std::move(inner.pending_.front());
      inner.pending_.pop_front();
      builder.set_body(rule, inner.resolved_value(inner.resolve(schema)));
    }
    auto compiled = CompiledGrammar::compile(builder, kNoTokens);
    if (compiled.ok()) return *compiled;
    if (compiled.error().message == kNoText) return nullptr;
    throw GrammarRefused(compiled.error().message);
  }

  bool name_matches(const std::string& pattern, const std::string& name) {
    const auto [place, is_new] = name_patterns_.try_emplace(pattern);
    auto& known = place->second;
    if (is_new)
      known = compile_alone([&](SchemaConversion& inner) {
        return inner.json_.quoted(inner.json_.matching(pattern, true));
      });
    if (known == nullptr) return false;
    const auto end = known->advance(known->start(), dump(Json(name)));
    return end && known->may_end(*end);
  }

  // ---- Strings and numbers -------------------------------------------------------------------

  std::pair<std::uint32_t, std::uint32_t> bounds_of(const Json& schema, const char* min_key,
                                                    const char* max_key) {
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
    if (schema.contains(min_key)) min = count_of(min_key, schema[min_key]);
    if (schema.contains(max_key)) {
      max = count_of(max_key, schema[max_key]);
      // Above every count that is held there is no difference to none.
      if (max > builder_.limits().max_repetition) max = kUnbounded;
    }
    return {min, max};
  }

  /// The content of strings that `pattern` and `format` hold; none if there are no such.
  std::optional<GrammarNodeId> patterns_of(const Json& schema) {
    std::optional<GrammarNodeId> result;
    const auto add = [&](GrammarNodeId node) {
      result = result ? builder_.intersection(*result, node) : node;
    };
    for (const char* key : {"pattern", "format"}) {
      if (!schema.contains(key)) continue;
      const Json& argument = schema[key];
      for (const Json& one : argument.is_array() ? argument : Json::array({argument})) {
        if (!one.is_string()) refuse(quote(key) + " must be a string");
        const auto& text = one.get_ref<const std::string&>();
        if (key == std::string_view("pattern")) {
          add(json_.matching(text, true));
        } else if (std::find(kFormatsWithoutText.begin(), kFormatsWithoutText.end(), text) ==
                   kFormatsWithoutText.end()) {
          const bool is_standard = std::find(kStandardFormats.begin(), kStandardFormats.end(),
                                             text) != kStandardFormats.end();
          const auto format = json_.format(text);
          if (!format && is_standard) refuse("the format " + quote(text) + " is not supported");
          if (format) add(*format);
        }
      }
    }
    if (schema.contains(kNotPatterns)) {
      add(spelled_text(0, kUnbounded));
      for (const Json& one : schema[kNotPatterns])
        add(builder_.complement(json_.matching(one.get_ref<const std::string&>(), true)));
    }
    return result;
  }

  GrammarNodeId spelled_text(std::uint32_t min, std::uint32_t max) {
    return builder_.repeat(json_.spelled_characters({{0, CodePointSet::kMax}}), min, max);
  }

  GrammarNodeId string(const Json& schema) {
    const auto [min, max] = bounds_of(schema, "minLength", "maxLength");
    if (min > max) return builder_.nothing();
    const auto patterns = patterns_of(schema);
    if (schema.contains(kNotTexts)) {
      std::vector<GrammarNodeId> texts;
      for (const Json& one : schema[kNotTexts])
        texts.push_back(json_.string_literal(one.get_ref<const std::string&>()));
      GrammarNodeId content = spelled_text(min, max);
      if (patterns) content = builder_.intersection(*patterns, content);
      return builder_.intersection(json_.quoted(content),
                                   builder_.complement(builder_.choice(texts)));
    }
    if (!patterns) return json_.string(min, max);
    if (min == 0 && max == kUnbounded) return json_.quoted(*patterns);
    return json_.quoted(builder_.intersection(*patterns, spelled_text(min, max)));
  }

  GrammarNodeId number(const Json& schema, bool integer) {
    NumberBounds bounds{.integer = integer};
    const auto bound = [&](const char* key, const char* exclusive_key, bool is_max) {
      std::optional<NumberBounds::Bound> result;
      if (schema.contains(key)) result = {number_of(key, schema[key]), false};
      if (schema.contains(exclusive_key)) {
        const Decimal value = number_of(exclusive_key, schema[exclusive_key]);
        if (!result || (is_max ? !less(result->value, value) : !less(value, result->value)))
          result = {value, true};
      }
      return result;
    };
    bounds.min = bound("minimum", "exclusiveMinimum", false);
    bounds.max = bound("maximum", "exclusiveMaximum", true);
    if (schema.contains("multipleOf"))
      bounds.multiple_of = number_of("multipleOf", schema["multipleOf"]);
    return json_.number(bounds);
  }

  // ---- Arrays --------------------------------------------------------------------------------

  GrammarNodeId array(const Json& schema) {
    GrammarBuilder& b = builder_;
    auto [min, max] = bounds_of(schema, "minItems", "maxItems");
    if (schema.contains("prefixItems") && !schema["prefixItems"].is_array())
      refuse("'prefixItems' must be a list of schemas");
    const std::size_t num_prefix =
        schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    if (item_schema(schema, num_prefix) == Json(false) && max > num_prefix)
      max = static_cast<std::uint32_t>(num_prefix);
    if (min > max) return b.nothing();
    const bool unique = schema.contains("uniqueItems") && schema["uniqueItems"] == Json(true);
    GrammarNodeId items = b.empty();
    if (unique && max > 1) {
      items = unique_items(schema, num_prefix, min, max);
    } else if (max > 0) {
      items = item_list(schema, num_prefix, min, max);
    }
    return b.sequence({b.byte('['), json_.whitespace(), items, b.byte(']')});
  }

  /// With white space behind the last one, unless there is none.
  GrammarNodeId item_list(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                          std::uint32_t max) {
    GrammarBuilder& b = builder_;
    const auto optional_if = [&](bool is_optional, GrammarNodeId node) {
      return is_optional ? b.choice({b.empty(), node}) : node;
    };
    num_prefix = std::min<std::size_t>(num_prefix, max);
    const auto before = static_cast<std::uint32_t>(num_prefix);
    // Behind i items.
    GrammarNodeId rest = b.empty();
    if (max > before) {
      const GrammarNodeId item = value(item_schema(schema, num_prefix));
      const auto more = [&](std::uint32_t from) {
        return b.repeat(b.sequence({json_.separator(','), item}), min > from ? min - from : 0,
                        max == kUnbounded ? kUnbounded : max - from);
      };
      if (before == 0)
        return optional_if(min == 0, b.sequence({item, more(1), json_.whitespace()}));
      rest = more(before);
    } else if (min > before) {
      return b.nothing();
    }
    for (std::size_t i = num_prefix; i-- > 0;) {
      const GrammarNodeId item = value(item_schema(schema, i));
      rest = i == 0 ? b.sequence({item, rest, json_.whitespace()})
                    : b.sequence({json_.separator(','), item, rest});
      rest = optional_if(i >= min, rest);
    }
    return rest;
  }

  /// By the set of values that have been there.
  GrammarNodeId unique_items(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                             std::uint32_t max) {
    GrammarBuilder& b = builder_;
    const Json items = resolve(item_schema(schema, num_prefix));
    std::vector<GrammarNodeId> values;
    if (num_prefix == 0 && items.is_object() && items.contains("enum") &&
        items["enum"].is_array()) {
      Json distinct = Json::array();
      for (const Json& one : items["enum"])
        if (std::find(distinct.begin(), distinct.end(), one) == distinct.end())
          distinct.push_back(one);
      for (const Json& one : distinct) {
        Json single = items;
        single["enum"] = Json::array({one});
        values.push_back(enumeration(single));
      }
    } else if (num_prefix == 0 && items.is_object() && items.contains("type") &&
               (items["type"] == Json::array({"boolean"}) ||
                items["type"] == Json::array({"null"}))) {
      for (const std::string_view text : {"true", "false"}) values.push_back(b.literal(text));
      if (items["type"] == Json::array({"null"})) values = {b.literal("null")};
    } else {
      refuse("'uniqueItems' is supported for the values of an 'enum' only");
    }
    if (values.size() > kMaxUniqueValues)
      refuse("'uniqueItems' of " + std::to_string(values.size()) + " values is over the limit of " +
             std::to_string(kMaxUniqueValues));
    const std::size_t num_sets = std::size_t{1} << values.size();
    std::vector<GrammarNodeId> behind(num_sets);
    for (std::size_t set = num_sets; set-- > 0;) {
      const auto count = static_cast<std::uint32_t>(__builtin_popcountll(set));
      std::vector<GrammarNodeId> parts;
      if (count >= min) parts.push_back(count == 0 ? b.empty() : json_.whitespace());
      for (std::size_t i = 0; i < values.size() && count < max; ++i) {
        if ((set >> i & 1) != 0) continue;
        parts.push_back(b.sequence({count == 0 ? b.empty() : json_.separator(','), values[i],
                                    behind[set | std::size_t{1} << i]}));
      }
      const GrammarRuleId rule = b.add_rule();
      b.set_body(rule, b.choice(parts));
      behind[set] = b.rule(rule);
    }
    return behind[0];
  }

  // ---- Objects -------------------------------------------------------------------------------

  struct Property {
    std::string name;
    bool required = false;
    GrammarNodeId pair = 0;
  };

  GrammarNodeId pair(GrammarNodeId name, GrammarNodeId value) {
    return builder_.sequence({name, json_.separator(':'), value});
  }

  /// The content of the names that a schema takes.
  GrammarNodeId names(const Json& unresolved) {
    const Json schema = resolve(unresolved);
    if (schema == Json(false)) return builder_.nothing();
    if (schema == Json(true)) return spelled_text(0, kUnbounded);
    if (schema.contains(kAnyOfs)) refuse("'propertyNames' with alternatives is not supported");
    if (!includes_type(types_of(schema), "string")) return builder_.nothing();
    const auto [min, max] = bounds_of(schema, "minLength", "maxLength");
    if (min > max) return builder_.nothing();
    GrammarNodeId result = spelled_text(min, max);
    if (const auto patterns = patterns_of(schema))
      result = builder_.intersection(result, *patterns);
    if (schema.contains("enum")) {
      std::vector<GrammarNodeId> texts;
      for (const Json& one : schema["enum"])
        if (one.is_string()) texts.push_back(name_content(one.get<std::string>()));
      result = builder_.intersection(result, builder_.choice(texts));
    }
    return result;
  }

  GrammarNodeId name_content(const std::string& name) {
    const std::string spelled = dump(Json(name));
    return builder_.literal(std::string_view(spelled).substr(1, spelled.size() - 2));
  }

  GrammarNodeId object(const Json& schema) {
    GrammarBuilder& b = builder_;
    const Json& named = property(schema, "properties");
    std::optional<GrammarNodeId> allowed_names;
    if (schema.contains("propertyNames")) allowed_names = names(schema["propertyNames"]);
    std::shared_ptr<CompiledGrammar> name_checker;
    if (allowed_names) name_checker = compile_names(schema["propertyNames"]);
    const auto allows = [&](const std::string& name) {
      if (!allowed_names) return true;
      if (name_checker == nullptr) return false;
      const auto end = name_checker->advance(name_checker->start(), dump(Json(name)));
      return end && name_checker->may_end(*end);
    };

    std::vector<Json> required;
    if (schema.contains("required")) {
      for (const Json& name : schema["required"])
        if (std::find(required.begin(), required.end(), name) == required.end())
          required.push_back(name);
    }
    std::vector<Property> properties;
    std::vector<std::string> excluded;  // names that no additional property has
    const auto add = [&](const std::string& name, const Json& inner) {
      const bool is_required =
          std::find(required.begin(), required.end(), Json(name)) != required.end();
      excluded.push_back(name);
      const GrammarNodeId node = allows(name) ? value(inner) : b.nothing();
      properties.push_back(
          {name, is_required, node == b.nothing() ? node : pair(json_.string_literal(name), node)});
    };
    for (const auto& [name, inner] : named.items()) {
      Json schema_of_name = inner;
      for (const auto& [pattern, also] : property(schema, "patternProperties").items())
        if (name_matches(pattern, name)) schema_of_name = all_of(schema_of_name, also);
      add(name, schema_of_name);
    }
    for (const Json& name : required)
      if (!named.contains(name.get<std::string>()))
        add(name.get<std::string>(), of_unnamed(schema, name.get<std::string>()));

    auto [min, max] = bounds_of(schema, "minProperties", "maxProperties");
    const auto num_required = static_cast<std::uint32_t>(required.size());
    if (min > max || num_required > max) return b.nothing();
    if (min <= num_required) min = 0;
    const GrammarNodeId more = additional_pairs(schema, excluded, allowed_names);
    if (max != kUnbounded && more == b.nothing() && max >= properties.size()) max = kUnbounded;
    return b.sequence(
        {b.byte('{'), json_.whitespace(), members(properties, more, min, max), b.byte('}')});
  }

  std::shared_ptr<CompiledGrammar> compile_names(const Json& schema) {
    return compile_alone(
        [&](SchemaConversion& inner) { return inner.json_.quoted(inner.names(schema)); });
  }

  /// A name and a value beside the named ones.
  GrammarNodeId additional_pairs(const Json& schema, const std::vector<std::string>& excluded,
                                 const std::optional<GrammarNodeId>& allowed_names) {
    GrammarBuilder& b = builder_;
    std::optional<GrammarNodeId> others;  // all names but the named ones
    const auto other_names = [&] {
      if (others) return *others;
      others = allowed_names ? *allowed_names : spelled_text(0, kUnbounded);
      if (!excluded.empty()) {
        std::vector<GrammarNodeId> texts;
        for (const std::string& name : excluded) texts.push_back(name_content(name));
        others = b.intersection(*others, b.complement(b.choice(texts)));
      }
      return *others;
    };
    const Json& patterns = property(schema, "patternProperties");
    const Json additional_schema = additional(schema);
    std::vector<GrammarNodeId> pairs;
    if (patterns.empty()) {
      if (additional_schema == Json(false)) return b.nothing();
      const GrammarNodeId inner = value(additional_schema);
      return inner == b.nothing() ? inner : pair(json_.quoted(other_names()), inner);
    }
    if (patterns.size() > kMaxPatterns)
      refuse(std::to_string(patterns.size()) + " 'patternProperties' are over the limit of " +
             std::to_string(kMaxPatterns));
    // By which of the patterns a name matches.
    std::vector<std::pair<GrammarNodeId, Json>> matching;
    for (const auto& [pattern, inner] : patterns.items())
      matching.emplace_back(json_.matching(pattern, true), inner);
    for (std::size_t set = 0; set < std::size_t{1} << matching.size(); ++set) {
      Json inner = set == 0 ? additional_schema : Json(true);
      GrammarNodeId name = other_names();
      for (std::size_t i = 0; i < matching.size(); ++i) {
        const bool matches = (set >> i & 1) != 0;
        if (matches) inner = all_of(inner, matching[i].second);
        name = b.intersection(name, matches ? matching[i].first : b.complement(matching[i].first));
      }
      if (inner == Json(false)) continue;
      const GrammarNodeId node = value(inner);
      if (node != b.nothing()) pairs.push_back(pair(json_.quoted(name), node));
    }
    return b.choice(pairs);
  }

  /// The named properties in their order, then others; with white space behind the last one.
  GrammarNodeId members(const std::vector<Property>& properties, GrammarNodeId more,
                        std::uint32_t min, std::uint32_t max) {
    GrammarBuilder& b = builder_;
    const bool counted = min > 0 || max != kUnbounded;
    // How many there have been matters up to here; without bounds only whether there was one.
    const std::uint32_t top = !counted ? 1 : max != kUnbounded ? max : min;
    if (counted && std::uint64_t{top} * (properties.size() + 1) > kMaxCountedStates)
      refuse("'minProperties' and 'maxProperties' with " + std::to_string(properties.size()) +
             " properties and a bound of " + std::to_string(top) + " take too many states");
    const auto with_separator = [&](std::uint32_t count, GrammarNodeId node) {
      return count == 0 ? node : b.sequence({json_.separator(','), node});
    };
    // behind[c]: what follows the i-th property if there have been c.
    std::vector<GrammarNodeId> behind(top + 1);
    for (std::uint32_t c = 0; c <= top; ++c) {
      const std::uint32_t at_least = min > c ? min - c : 0;
      const std::uint32_t at_most = max == kUnbounded ? kUnbounded : max - c;
      const GrammarNodeId following = b.sequence({json_.separator(','), more});
      if (c > 0) {
        behind[c] = b.sequence({b.repeat(following, at_least, at_most), json_.whitespace()});
      } else if (at_most == 0) {
        behind[c] = b.empty();
      } else {
        const GrammarNodeId some =
            b.sequence({more,
                        b.repeat(following, at_least > 0 ? at_least - 1 : 0,
                                 at_most == kUnbounded ? kUnbounded : at_most - 1),
                        json_.whitespace()});
        behind[c] = at_least > 0 ? some : b.choice({b.empty(), some});
      }
    }
    for (std::size_t i = properties.size(); i-- > 0;) {
      const Property& property = properties[i];
      std::vector<GrammarNodeId> before(top + 1);
      for (std::uint32_t c = 0; c <= top; ++c) {
        const bool is_full = counted && max != kUnbounded && c == max;
        const GrammarNodeId with =
            is_full || property.pair == b.nothing()
                ? b.nothing()
                : with_separator(c, b.sequence({property.pair, behind[std::min(c + 1, top)]}));
        const GrammarNodeId node = property.required ? with : b.choice({with, behind[c]});
        if (node == b.nothing() || node == behind[c]) {
          before[c] = node;
          continue;
        }
        const GrammarRuleId rule = b.add_rule();
        b.set_body(rule, node);
        before[c] = b.rule(rule);
      }
      behind = std::move(before);
    }
    return behind[0];
  }

  GrammarBuilder& builder_;
  JsonGrammar json_;
  const Json& root_;
  const JsonGrammarOptions& options_;
  std::string root_id_;
  std::map<std::string, const Json*> ids_;
  std::map<std::string, GrammarRuleId> rules_;
  std::map<std::string, GrammarRuleId> merged_rules_;
  std::deque<std::pair<GrammarRuleId, Json>> pending_;
  std::map<std::string, std::shared_ptr<CompiledGrammar>> name_patterns_;
  int nesting_ = 0;       ///< of oneOf, not and if
  int merged_depth_ = 0;  ///< of merged_rule
  int alone_depth_ = 0;   ///< of compile_alone
  std::size_t num_merges_ = 0;
};

}  // namespace

GrammarNodeId add_json_schema(GrammarBuilder& builder, std::string_view schema,
                              const JsonGrammarOptions& options) {
  if (schema.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("json_schema: the schema has " + std::to_string(schema.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
  const Json root = parse_bounded_json<Json>(schema);
  if (root.is_discarded())
    throw GrammarRefused("json_schema: the schema is no JSON, or is nested deeper than " +
                         std::to_string(kMaxJsonDepth) + " levels");
  const GrammarRuleId start = builder.add_rule();
  try {
    SchemaConversion(builder, root, options).run(start);
  } catch (const Json::exception& error) {
    throw GrammarRefused(std::string("json_schema: a keyword's value has the wrong type: ") +
                         error.what());
  }
  return builder.rule(start);
}

Result<GrammarBuilder> json_schema_grammar(std::string_view schema,
                                           const JsonGrammarOptions& options,
                                           const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    add_json_schema(builder, schema, options);  // its rule is the first
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

Result<GrammarBuilder> json_object_grammar(const JsonGrammarOptions& options,
                                           const GrammarLimits& limits) {
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId start = builder.add_rule();
    builder.set_body(start, JsonGrammar(builder, options).any_object());
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
