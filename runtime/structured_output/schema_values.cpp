// Schemas of any value, of constants, strings and numbers.

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_conversion.hpp"

namespace troupe::schema {
namespace {

constexpr int kMaxMergedDepth = 100;
constexpr int kMaxAloneDepth = 4;

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

/// Equal for equal schemas: the order of keywords says nothing but where alternatives stand.
std::string key_of(const Json& schema) {
  if (!schema.is_object()) return dump(schema);
  std::vector<std::string> parts;
  for (const auto& [keyword, argument] : schema.items())
    parts.push_back(dump(keyword) + ":" + dump(argument));
  std::ranges::sort(parts);
  std::string key(comes_first(schema, kAnyOfs, "properties") ? "a" : "p");
  for (const std::string& part : parts) key += "," + part;
  return key;
}

}  // namespace

SchemaConversion::SchemaConversion(GrammarBuilder& builder, SchemaResolver& resolver,
                                   JsonStrings strings)
    : builder_(builder), json_(builder, resolver.options(), strings), resolver_(resolver) {}

SchemaConversion::~SchemaConversion() = default;

void SchemaConversion::run(
    GrammarRuleId start,
    const std::function<GrammarNodeId(SchemaConversion&, GrammarRuleId)>& make) {
  builder_.set_body(start, make(*this, start));
  while (!pending_.empty()) {
    const auto [rule, schema] = pending_.front();
    pending_.pop_front();
    builder_.set_body(rule, resolved_value_of(*schema));
  }
}

GrammarNodeId SchemaConversion::whole(GrammarRuleId start) {
  root_rule_ = start;
  return value(resolver_.root());
}

GrammarNodeId SchemaConversion::parameters(const ParameterStyle& style) {
  style_ = &style;
  const GrammarNodeId node = resolved_value(only("object", resolver_.root()));
  style_ = nullptr;
  return node;
}

Json SchemaConversion::only(const char* type, const Json& schema) {
  return resolver_.merge(resolver_.resolve(schema), Json{{"type", Json::array({type})}});
}

bool SchemaConversion::has_rules() const {
  return style_ == nullptr && json_.strings() != JsonStrings::kPlain;
}

std::string SchemaConversion::spelled(const Json& value) const {
  const bool is_plain = value.is_string() && json_.strings() == JsonStrings::kPlain;
  return is_plain ? value.get<std::string>() : dump(value);
}

GrammarNodeId SchemaConversion::rule_for_target(const Json& target) {
  if (&target == &resolver_.root() && root_rule_) return builder_.rule(*root_rule_);
  const auto [known, is_new] = target_rules_.try_emplace(&target, 0);
  if (is_new) {
    known->second = builder_.add_rule();
    pending_.emplace_back(known->second, &target);
  }
  return builder_.rule(known->second);
}

GrammarNodeId SchemaConversion::rule_for(const Json& schema) {
  const auto [known, is_new] = rules_.try_emplace(dump(schema), 0);
  if (is_new) {
    known->second = builder_.add_rule();
    pending_schemas_.push_back(std::make_unique<const Json>(schema));
    pending_.emplace_back(known->second, pending_schemas_.back().get());
  }
  return builder_.rule(known->second);
}

GrammarNodeId SchemaConversion::value(const Json& schema) {
  if (schema.is_object()) {
    if (resolver_.only_refers(schema)) return rule_for_target(resolver_.target_of(schema["$ref"]));
    if (schema.contains("$ref") || schema.contains("allOf")) return rule_for(schema);
  }
  return resolved_value_of(schema);
}

GrammarNodeId SchemaConversion::resolved_value_of(const Json& schema) {
  if (const Json* const resolved = resolver_.resolved(schema)) return resolved_value(*resolved);
  const Json* const branches = has_rules() ? resolver_.only_alternatives(schema) : nullptr;
  if (branches == nullptr) return resolved_value(resolver_.resolve(schema));
  std::vector<GrammarNodeId> parts;
  for (const Json& branch : *branches) parts.push_back(value(branch));
  return builder_.choice(parts);
}

GrammarNodeId SchemaConversion::alternatives(const Json& schema, const Json& groups) {
  Json base = Json::object();
  base.get_ref<Json::object_t&>().reserve(schema.size());  // it copies all that it has to grow
  for (const auto& [key, argument] : schema.items()) {
    if (key != kAnyOfs) {
      base[key] = argument;
    } else if (groups.size() > 1) {
      // The inner list of alternatives keeps its place among the others.
      base[key] = Json(groups.begin() + 1, groups.end());
    }
  }
  const bool branch_first =
      schema.contains("properties") && comes_first(schema, kAnyOfs, "properties");
  const bool is_alone = base.empty() && has_rules();
  std::vector<GrammarNodeId> parts;
  for (const Json& branch : groups[0]) {
    if (is_alone) {
      parts.push_back(value(branch));
      continue;
    }
    Json resolved = resolver_.resolve(branch);
    const Json merged = branch_first ? resolver_.merge(std::move(resolved), base)
                                     : resolver_.merge(base, std::move(resolved));
    parts.push_back(merged == Json(false) ? builder_.nothing() : merged_rule(merged));
  }
  return builder_.choice(parts);
}

GrammarNodeId SchemaConversion::resolved_value(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? json_.any_value() : builder_.nothing();
  const auto groups = schema.find(kAnyOfs);
  if (groups != schema.end()) return alternatives(schema, *groups);
  if (schema.contains("enum")) return enumeration(schema, resolver_.options().any_order);
  const TypeSet types = types_of(schema);
  std::vector<GrammarNodeId> parts;
  if (types.has("object")) parts.push_back(object(schema));
  if (types.has("array")) parts.push_back(array(schema));
  if (types.has("string")) parts.push_back(string(schema));
  if (types.has("number")) {
    parts.push_back(number(schema, false));
  } else if (types.has("integer")) {
    parts.push_back(number(schema, true));
  }
  if (types.has("boolean"))
    parts.push_back(builder_.choice({builder_.literal("true"), builder_.literal("false")}));
  if (types.has("null")) parts.push_back(builder_.literal("null"));
  return builder_.choice(parts);
}

GrammarNodeId SchemaConversion::merged_rule(const Json& schema) {
  if (!has_rules()) {
    const Nesting nesting(merged_depth_, kMaxMergedDepth, "joined schemas");
    return resolved_value(schema);
  }
  const auto [known, is_new] = merged_rules_.try_emplace(key_of(schema), 0);
  const GrammarRuleId rule = is_new ? known->second = builder_.add_rule() : known->second;
  if (!is_new) return builder_.rule(rule);
  const Nesting nesting(merged_depth_, kMaxMergedDepth, "joined schemas");
  builder_.set_body(rule, resolved_value(schema));
  return builder_.rule(rule);
}

GrammarNodeId SchemaConversion::constant(const Json& value, bool any_order) {
  GrammarBuilder& b = builder_;
  if (value.is_string()) return json_.string_literal(value.get_ref<const std::string&>());
  if (!value.is_structured()) return b.literal(dump(value));
  if (any_order && value.is_object()) {
    std::vector<Property> properties;
    for (const auto& [name, inner] : value.items())
      properties.push_back(
          {name, true, pair(json_.string_literal(name), constant(inner, any_order))});
    return b.sequence({b.byte('{'), json_.whitespace(),
                       unordered_members(properties, b.nothing(), 0, kUnbounded), b.byte('}')});
  }
  std::vector<GrammarNodeId> parts{b.byte(value.is_array() ? '[' : '{'), json_.whitespace()};
  bool first = true;
  for (const auto& [key, inner] : value.items()) {
    if (!std::exchange(first, false)) parts.push_back(json_.separator(','));
    if (value.is_object()) {
      parts.push_back(json_.string_literal(key));
      parts.push_back(json_.separator(':'));
    }
    parts.push_back(constant(inner, any_order));
  }
  if (!value.empty()) parts.push_back(json_.whitespace());
  parts.push_back(b.byte(value.is_array() ? ']' : '}'));
  return b.sequence(parts);
}

GrammarNodeId SchemaConversion::enumeration(const Json& schema, bool any_order) {
  if (style_ != nullptr) refuse("'enum' and 'const' of parameters are not supported");
  Json others = Json::object();
  bool is_limited = false;
  for (const auto& [key, argument] : schema.items()) {
    if (key == "enum" || says_nothing(key)) continue;
    is_limited = is_limited || key != "type";
    others[key] = argument;
  }
  std::shared_ptr<CompiledGrammar> accepts;
  if (is_limited)
    accepts = compile_alone([&](SchemaConversion& inner) { return inner.resolved_value(others); });
  std::vector<GrammarNodeId> parts;
  for (const Json& one : schema["enum"]) {
    if (schema.contains("type") && !includes_type(schema["type"], type_of(one))) continue;
    if (is_limited && !is_text_of(accepts, spelled(one))) continue;
    parts.push_back(constant(one, any_order));
  }
  return builder_.choice(parts);
}

std::shared_ptr<CompiledGrammar> SchemaConversion::compile_alone(
    const std::function<GrammarNodeId(SchemaConversion&)>& make) {
  const Nesting nesting(alone_depth_, kMaxAloneDepth, "constants with other keywords");
  GrammarBuilder builder(builder_.limits());
  SchemaConversion inner(builder, resolver_, json_.strings());
  inner.alone_depth_ = alone_depth_;
  inner.run(builder.add_rule(), [&](SchemaConversion& one, GrammarRuleId) { return make(one); });
  return compile_texts(builder);
}

std::pair<std::uint32_t, std::uint32_t> SchemaConversion::bounds_of(const Json& schema,
                                                                    const char* min_key,
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

std::optional<GrammarNodeId> SchemaConversion::patterns_of(const Json& schema) {
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

GrammarNodeId SchemaConversion::spelled_text(std::uint32_t min, std::uint32_t max) {
  return builder_.repeat(json_.spelled_character(), min, max);
}

GrammarNodeId SchemaConversion::spelled_text(std::uint32_t min, std::uint32_t max,
                                             const std::optional<GrammarNodeId>& patterns) {
  if (!patterns) return spelled_text(min, max);
  // Patterns take nothing but such characters.
  if (min == 0 && max == kUnbounded) return *patterns;
  return builder_.intersection(*patterns, spelled_text(min, max));
}

GrammarNodeId SchemaConversion::string(const Json& schema) {
  const auto [min, max] = bounds_of(schema, "minLength", "maxLength");
  if (min > max) return builder_.nothing();
  const auto patterns = patterns_of(schema);
  if (schema.contains(kNotTexts)) {
    std::vector<GrammarNodeId> texts;
    for (const Json& one : schema[kNotTexts])
      texts.push_back(json_.string_literal(one.get_ref<const std::string&>()));
    return builder_.intersection(json_.quoted(spelled_text(min, max, patterns)),
                                 builder_.complement(builder_.choice(texts)));
  }
  if (!patterns) return json_.string(min, max);
  return json_.quoted(spelled_text(min, max, patterns));
}

GrammarNodeId SchemaConversion::number(const Json& schema, bool integer) {
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
  if (schema.contains(kNotMultiples))
    for (const Json& one : schema[kNotMultiples])
      bounds.not_multiples.push_back(number_of("multipleOf", one));
  return json_.number(bounds);
}

}  // namespace troupe::schema
