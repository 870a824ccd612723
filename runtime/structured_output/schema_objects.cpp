// Schemas of objects, and of parameters that are written in a style of their own.

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_conversion.hpp"

namespace troupe::schema {
namespace {

constexpr std::size_t kMaxPatterns = 4;           ///< patternProperties of one object
constexpr std::size_t kMaxObjectStates = 20'000;  ///< of an object whose properties count

}  // namespace

GrammarNodeId SchemaConversion::pair(GrammarNodeId name, GrammarNodeId value) {
  return builder_.sequence({name, json_.separator(':'), value});
}

GrammarNodeId SchemaConversion::names(const Json& unresolved) {
  const Json schema = resolver_.resolve(unresolved);
  if (schema == Json(false)) return builder_.nothing();
  if (schema == Json(true)) return spelled_text(0, kUnbounded);
  if (schema.contains(kAnyOfs)) refuse("'propertyNames' with alternatives is not supported");
  if (!types_of(schema).has("string")) return builder_.nothing();
  const auto [min, max] = bounds_of(schema, "minLength", "maxLength");
  if (min > max) return builder_.nothing();
  GrammarNodeId result = spelled_text(min, max, patterns_of(schema));
  if (schema.contains("enum")) {
    std::vector<GrammarNodeId> texts;
    for (const Json& one : schema["enum"])
      if (one.is_string()) texts.push_back(name_content(one.get<std::string>()));
    result = builder_.intersection(result, builder_.choice(texts));
  }
  return result;
}

GrammarNodeId SchemaConversion::name_content(const std::string& name) {
  const std::string spelled = dump(Json(name));
  return builder_.literal(std::string_view(spelled).substr(1, spelled.size() - 2));
}

GrammarNodeId SchemaConversion::object(const Json& schema) {
  // The style is that of the outermost object.
  const ParameterStyle* const style = std::exchange(style_, nullptr);
  const GrammarNodeId node = object(schema, style);
  style_ = style;
  return node;
}

GrammarNodeId SchemaConversion::plain_text(const Json& schema, const ParameterStyle& style) {
  GrammarBuilder& b = builder_;
  SchemaConversion plain(b, resolver_, JsonStrings::kPlain);
  const GrammarNodeId any = b.repeat(b.bytes(byte_range(0, 255)), 0);
  const std::size_t end = style.end.find_first_not_of('\n');
  std::vector<GrammarNodeId> excluded;
  if (end != std::string::npos)
    excluded.push_back(b.sequence({any, b.literal(style.end.substr(end)), any}));
  if (!style.text_middle.ends_with('\n')) {
    excluded.push_back(b.sequence({b.byte('\n'), any}));
    excluded.push_back(b.sequence({any, b.byte('\n')}));
  }
  const GrammarNodeId text = plain.resolved_value(only("string", schema));
  return excluded.empty() ? text : b.intersection(text, b.complement(b.choice(excluded)));
}

GrammarNodeId SchemaConversion::parameter(const std::string& name, const Json& schema,
                                          const ParameterStyle& style) {
  GrammarBuilder& b = builder_;
  const bool is_text = std::find(style.texts.begin(), style.texts.end(), name) != style.texts.end();
  return b.sequence({b.literal(style.begin + name + (is_text ? style.text_middle : style.middle)),
                     is_text ? plain_text(schema, style) : value(schema), b.literal(style.end)});
}

GrammarNodeId SchemaConversion::object(const Json& schema, const ParameterStyle* style) {
  GrammarBuilder& b = builder_;
  const Json& named = property(schema, "properties");
  std::optional<GrammarNodeId> allowed_names;
  if (schema.contains("propertyNames")) allowed_names = names(schema["propertyNames"]);
  std::shared_ptr<CompiledGrammar> name_checker;
  if (allowed_names) name_checker = compile_names(schema["propertyNames"]);
  const auto allows = [&](const std::string& name) {
    return !allowed_names || is_text_of(name_checker, dump(Json(name)));
  };

  std::vector<std::string> required;
  std::unordered_set<std::string_view> required_names;
  if (schema.contains("required")) {
    for (const Json& one : schema["required"]) {
      const auto& name = one.get_ref<const std::string&>();
      if (required_names.insert(name).second) required.push_back(name);
    }
  }
  std::vector<Property> properties;
  std::vector<std::string> excluded;  // names that no additional property has
  const auto add = [&](const std::string& name, const Json& inner) {
    const bool is_required = required_names.contains(name);
    excluded.push_back(name);
    GrammarNodeId node = b.nothing();
    if (allows(name) && style != nullptr) {
      node = parameter(name, inner, *style);
    } else if (allows(name)) {
      node = value(inner);
      if (node != b.nothing()) node = pair(json_.string_literal(name), node);
    }
    properties.push_back({name, is_required, node});
  };
  const Json& patterns = property(schema, "patternProperties");
  for (const auto& [name, inner] : named.items()) {
    if (patterns.empty()) {
      add(name, inner);
      continue;
    }
    Json schema_of_name = inner;
    for (const auto& [pattern, also] : patterns.items())
      if (resolver_.name_matches(pattern, name)) schema_of_name = all_of(schema_of_name, also);
    add(name, schema_of_name);
  }
  for (const auto& [name, inner] : named.items()) required_names.erase(name);
  for (const std::string& name : required)
    if (required_names.contains(name)) add(name, resolver_.of_unnamed(schema, name));

  auto [min, max] = bounds_of(schema, "minProperties", "maxProperties");
  const auto num_required = static_cast<std::uint32_t>(required.size());
  if (min > max || num_required > max) return b.nothing();
  if (min <= num_required) min = 0;
  const GrammarNodeId more =
      style != nullptr ? b.nothing() : additional_pairs(schema, excluded, allowed_names);
  if (max != kUnbounded && more == b.nothing() && max >= properties.size()) max = kUnbounded;
  if (style != nullptr)
    return members(properties, more, min, max, b.literal(style->separator), b.empty());
  return b.sequence(
      {b.byte('{'), json_.whitespace(),
       resolver_.options().any_order
           ? unordered_members(properties, more, min, max)
           : members(properties, more, min, max, json_.separator(','), json_.whitespace()),
       b.byte('}')});
}

std::shared_ptr<CompiledGrammar> SchemaConversion::compile_names(const Json& schema) {
  return compile_alone(
      [&](SchemaConversion& inner) { return inner.json_.quoted(inner.names(schema)); });
}

GrammarNodeId SchemaConversion::additional_pairs(
    const Json& schema, const std::vector<std::string>& excluded,
    const std::optional<GrammarNodeId>& allowed_names) {
  GrammarBuilder& b = builder_;
  std::vector<GrammarNodeId> named;
  const auto but_named = [&](GrammarNodeId names) {
    if (excluded.empty()) return names;
    if (named.empty())
      for (const std::string& name : excluded) named.push_back(name_content(name));
    return b.intersection(names, b.complement(b.choice(named)));
  };
  const Json& patterns = property(schema, "patternProperties");
  const Json& additional_schema = additional(schema);
  const GrammarNodeId any_name = spelled_text(0, kUnbounded);
  std::vector<GrammarNodeId> pairs;
  if (patterns.empty()) {
    if (additional_schema == Json(false)) return b.nothing();
    const GrammarNodeId inner = value(additional_schema);
    if (inner == b.nothing()) return inner;
    return pair(json_.quoted(but_named(allowed_names.value_or(any_name))), inner);
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
    std::optional<GrammarNodeId> name = allowed_names;
    for (std::size_t i = 0; i < matching.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      inner = all_of(inner, matching[i].second);
      name = name ? b.intersection(*name, matching[i].first) : matching[i].first;
    }
    if (inner == Json(false)) continue;
    const GrammarNodeId node = value(inner);
    if (node == b.nothing()) continue;
    name = but_named(name.value_or(any_name));
    for (std::size_t i = 0; i < matching.size(); ++i)
      if ((set >> i & 1) == 0) name = b.intersection(*name, b.complement(matching[i].first));
    pairs.push_back(pair(json_.quoted(*name), node));
  }
  return b.choice(pairs);
}

GrammarNodeId SchemaConversion::unordered_members(const std::vector<Property>& properties,
                                                  GrammarNodeId more, std::uint32_t min,
                                                  std::uint32_t max) {
  GrammarBuilder& b = builder_;
  GrammarBuilder::Unordered items{.separator = json_.separator(','),
                                  .last = json_.whitespace(),
                                  .more = more,
                                  .required = {},
                                  .optional = {},
                                  .min = std::max(min, 1u),
                                  .max = max};
  for (const Property& property : properties) {
    if (property.pair != b.nothing()) {
      (property.required ? items.required : items.optional).push_back(property.pair);
    } else if (property.required) {
      return b.nothing();
    }
  }
  const bool may_be_empty = min == 0 && items.required.empty();
  if (max == 0 || (more == b.nothing() && items.required.empty() && items.optional.empty()))
    return may_be_empty ? b.empty() : b.nothing();
  const GrammarNodeId some = b.unordered(items);
  return may_be_empty ? b.optional(some) : some;
}

GrammarNodeId SchemaConversion::members(const std::vector<Property>& properties, GrammarNodeId more,
                                        std::uint32_t min, std::uint32_t max,
                                        GrammarNodeId separator, GrammarNodeId last) {
  GrammarBuilder& b = builder_;
  const bool counted = min > 0 || max != kUnbounded;
  // How many there have been matters up to here; without bounds only whether there was one.
  const std::uint32_t top = !counted ? 1 : max != kUnbounded ? max : min;
  if (counted && std::uint64_t{top} * (properties.size() + 1) > kMaxObjectStates)
    refuse("'minProperties' and 'maxProperties' with " + std::to_string(properties.size()) +
           " properties and a bound of " + std::to_string(top) + " take too many states");
  const auto with_separator = [&](std::uint32_t count, GrammarNodeId node) {
    return count == 0 ? node : b.sequence({separator, node});
  };
  // behind[c]: what follows the i-th property if there have been c.
  std::vector<GrammarNodeId> behind(top + 1);
  for (std::uint32_t c = 0; c <= top; ++c) {
    const std::uint32_t at_least = min > c ? min - c : 0;
    const std::uint32_t at_most = max == kUnbounded ? kUnbounded : max - c;
    const GrammarNodeId following = b.sequence({separator, more});
    if (c > 0) {
      behind[c] = b.sequence({b.repeat(following, at_least, at_most), last});
    } else if (at_most == 0) {
      behind[c] = b.empty();
    } else {
      const GrammarNodeId some =
          b.sequence({more,
                      b.repeat(following, at_least > 0 ? at_least - 1 : 0,
                               at_most == kUnbounded ? kUnbounded : at_most - 1),
                      last});
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

}  // namespace troupe::schema
