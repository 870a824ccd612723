#include "runtime/structured_output/schema_resolver.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "runtime/base/ordered_json.hpp"

namespace troupe::schema {
namespace {

constexpr int kMaxResolutions = 64;  ///< of references and allOf within each other

const std::array<std::string_view, 5> kRefused{"$dynamicRef", "$recursiveRef", "extends",
                                               "disallow", "divisibleBy"};

/// CompiledGrammar's error for a grammar without a text.
constexpr std::string_view kNoText = "no text fits the grammar";

/// The argument of kContains; null where it says nothing.
Json contains_of(const Json& schema) {
  Json result{{"contains", schema["contains"]}, {"minContains", 1}};
  if (schema.contains("minContains"))
    result["minContains"] = count_of("minContains", schema["minContains"]);
  if (schema.contains("maxContains"))
    result["maxContains"] = count_of("maxContains", schema["maxContains"]);
  if (result["minContains"] == Json(0) && !result.contains("maxContains")) return nullptr;
  return Json::array({std::move(result)});
}

template <std::size_t kSize>
bool is_one_of(const std::array<std::string_view, kSize>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Is the keyword in a resolved schema what it was before?
bool is_resolved_keyword(const std::string& key, const Json& argument) {
  const auto is_type = [](const Json& type) {
    return type.is_string() && std::find(kTypes.begin(), kTypes.end(),
                                         type.get_ref<const std::string&>()) != kTypes.end();
  };
  if (key == "type")
    return is_type(argument) ||
           (argument.is_array() && std::all_of(argument.begin(), argument.end(), is_type));
  if (key == "enum") return argument.is_array();
  if (!is_kept(key) || key == "additionalItems") return false;
  if (key == "items") return !argument.is_array();
  if (key == "exclusiveMinimum" || key == "exclusiveMaximum") return !argument.is_boolean();
  if (key == "required")
    return argument.is_array() && std::all_of(argument.begin(), argument.end(),
                                              [](const Json& name) { return name.is_string(); });
  return true;
}

void old_drafts(Json& schema) {
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

void add_dependent(const std::string& key, const Json& argument, Json& any_ofs) {
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

}  // namespace

std::shared_ptr<CompiledGrammar> compile_texts(const GrammarBuilder& builder) {
  static const auto kNoTokens = GrammarVocabulary::make({}, 0);
  auto compiled = CompiledGrammar::compile(builder, kNoTokens);
  if (compiled.ok()) return *compiled;
  if (compiled.error().message == kNoText) return nullptr;
  throw GrammarRefused(compiled.error().message);
}

bool is_text_of(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  if (grammar == nullptr) return false;
  const auto end = grammar->advance(grammar->start(), text);
  return end && grammar->may_end(*end);
}

SchemaResolver::SchemaResolver(const Json& root, const JsonGrammarOptions& options,
                               const GrammarLimits& limits)
    : root_(root), options_(options), limits_(limits) {
  find_ids(root_, true);
  if (!root_.is_object() || !root_.contains("$schema") || !root_["$schema"].is_string()) return;
  const auto& draft = root_["$schema"].get_ref<const std::string&>();
  for (const char* old : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"})
    is_old_draft_ = is_old_draft_ || draft.find(old) != std::string::npos;
}

bool SchemaResolver::only_refers(const Json& schema) const {
  return schema.is_object() && schema.contains("$ref") && (is_old_draft_ || schema.size() == 1);
}

void SchemaResolver::find_ids(const Json& schema, bool is_root) {
  if (schema.is_array()) {
    for (const Json& item : schema) find_ids(item, false);
    return;
  }
  if (!schema.is_object()) return;
  for (const auto& [key, inner] : schema.items()) {
    if (key == kNotTexts || key == kNotPatterns || key == kNotMultiples)
      refuse("the keyword " + quote(key) + " is unknown");
    if ((key == "$id" || key == "id") && inner.is_string()) {
      const auto& id = inner.get_ref<const std::string&>();
      if (is_root) {
        root_id_ = id.substr(0, id.find('#'));
      } else {
        ids_.emplace(id, &schema);
      }
    } else if ((key == "$anchor" || key == "$dynamicAnchor") && inner.is_string()) {
      ids_.emplace("#" + inner.get<std::string>(), &schema);
    } else if (key != "enum" && key != "const" && key != "default" && key != "examples") {
      find_ids(inner, false);
    }
  }
}

const Json& SchemaResolver::target_of(const Json& reference) const {
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
        name.push_back(static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16)));
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

Json SchemaResolver::resolve(const Json& schema, int depth) {
  if (depth > kMaxResolutions)
    refuse("references and 'allOf' lead to each other more than " +
           std::to_string(kMaxResolutions) + " times");
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) refuse("a schema must be an object or a boolean");
  if (only_refers(schema)) return resolve(target_of(schema["$ref"]), depth + 1);
  if (has_unevaluated(schema)) return resolve(without_unevaluated(schema), depth + 1);
  // Properties have the order in which the keywords that name them stand in the schema.
  bool own_first = false;
  Json own = Json::object();
  own.get_ref<Json::object_t&>().reserve(schema.size() + 1);  // it copies all that it has to grow
  Json result = true;
  Json any_ofs = Json::array();
  for (const auto& [key, argument] : schema.items()) {
    if (is_one_of(kRefused, key)) refuse("the keyword " + quote(key) + " is not supported");
    if (key == "$ref" || key == "allOf") own_first = own_first || own.contains("properties");
    if (key == "anyOf" || key == "oneOf") own[kAnyOfs] = nullptr;
    if (key == "$ref") {
      result = merge(std::move(result), resolve(target_of(argument), depth + 1));
    } else if (key == "allOf") {
      for (const Json& part : list_of_schemas(key, argument))
        result = merge(std::move(result), resolve(part, depth + 1));
    } else if (key == "anyOf") {
      any_ofs.push_back(list_of_schemas(key, argument));
    } else if (key == "oneOf") {
      any_ofs.push_back(exclusive_branches(schema));
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
    } else if (key == "contains") {
      Json counted = contains_of(schema);
      if (!counted.is_null()) own[kContains] = std::move(counted);
    } else if (key == "type") {
      Json types = argument.is_string() ? Json::array({argument}) : argument;
      if (!types.is_array()) refuse("'type' must be a string or an array");
      for (const Json& type : types)
        if (!type.is_string() ||
            std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end())
          refuse("'type' " + dump(type) + " is unknown");
      own["type"] = std::move(types);
    } else if (key == "enum") {
      if (!argument.is_array()) refuse("'enum' must be a list");
      own[key] = argument;
    } else if (is_kept(key)) {
      if (key == "required" &&
          (!argument.is_array() || !std::all_of(argument.begin(), argument.end(),
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
  if (own_first) return merge(std::move(own), std::move(result));
  return merge(std::move(result), std::move(own));
}

const Json* SchemaResolver::resolved(const Json& unresolved) const {
  const Json* schema = &unresolved;
  for (int depth = 0; depth < kMaxResolutions; ++depth) {
    if (schema->is_boolean()) return schema;
    if (!schema->is_object()) return nullptr;
    const Json* reference = nullptr;
    bool has_others = false;
    bool is_resolved = true;
    for (const auto& [key, argument] : schema->items()) {
      if (key == "$ref") {
        reference = &argument;
      } else if (is_resolved_keyword(key, argument)) {
        has_others = true;
      } else if (!says_nothing(key)) {
        is_resolved = false;
      }
    }
    if (!is_resolved && !only_refers(*schema)) return nullptr;
    if (reference == nullptr) {
      const bool is_closed = options_.disable_additional_properties &&
                             schema->contains("properties") &&
                             !schema->contains("additionalProperties");
      return is_closed ? nullptr : schema;
    }
    if (has_others && !is_old_draft_) return nullptr;
    schema = &target_of(*reference);
  }
  return nullptr;
}

const Json* SchemaResolver::only_alternatives(const Json& schema) {
  if (!schema.is_object()) return nullptr;
  const Json* branches = nullptr;
  for (const auto& [key, argument] : schema.items()) {
    if (key == "anyOf") {
      branches = &argument;
    } else if (!says_nothing(key)) {
      return nullptr;
    }
  }
  return branches == nullptr ? nullptr : &list_of_schemas("anyOf", *branches);
}

Json SchemaResolver::of_unnamed(const Json& schema, const std::string& name) {
  Json result = true;
  bool matched = false;
  for (const auto& [pattern, inner] : property(schema, "patternProperties").items()) {
    if (!name_matches(pattern, name)) continue;
    result = all_of(result, inner);
    matched = true;
  }
  return matched ? result : additional(schema);
}

bool SchemaResolver::name_matches(const std::string& pattern, const std::string& name) {
  const auto [place, is_new] = name_patterns_.try_emplace(pattern);
  if (is_new) {
    GrammarBuilder builder(limits_);
    const GrammarRuleId rule = builder.add_rule();
    JsonGrammar json(builder, options_);
    builder.set_body(rule, json.quoted(json.matching(pattern, true)));
    place->second = compile_texts(builder);
  }
  return is_text_of(place->second, dump(Json(name)));
}

}  // namespace troupe::schema
