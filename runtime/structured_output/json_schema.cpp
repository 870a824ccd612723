#include "runtime/structured_output/json_schema.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/json_grammar.hpp"
#include "runtime/structured_output/schema_parser.hpp"
#include "runtime/structured_output/schema_resolver.hpp"

namespace troupe {
namespace schema {
namespace {

constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
constexpr std::size_t kMaxPatterns = 4;            ///< patternProperties of one object
constexpr std::size_t kMaxUniqueValues = 32;       ///< of an array with uniqueItems
constexpr std::size_t kMaxUniqueSets = 256;        ///< of them, as states
constexpr std::size_t kMaxContains = 3;            ///< of one array, from allOf
constexpr std::size_t kMaxCountedStates = 20'000;  ///< of an object or array whose parts count
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

/// Makes the grammar of resolved schemas.
class SchemaConversion {
 public:
  SchemaConversion(GrammarBuilder& builder, SchemaResolver& resolver,
                   JsonStrings strings = JsonStrings::kQuoted)
      : builder_(builder), json_(builder, resolver.options(), strings), resolver_(resolver) {}

  /// The rule is what `make` makes of this.
  template <class Make>
  void run(GrammarRuleId start, const Make& make) {
    builder_.set_body(start, make(*this, start));
    while (!pending_.empty()) {
      const auto [rule, schema] = std::move(pending_.front());
      pending_.pop_front();
      builder_.set_body(rule, resolved_value_of(schema));
    }
  }

  /// For the rule `start`.
  GrammarNodeId whole(GrammarRuleId start) {
    root_rule_ = start;
    return value(resolver_.root());
  }

  GrammarNodeId parameters(const ParameterStyle& style) {
    style_ = &style;
    const GrammarNodeId node = resolved_value(only("object", resolver_.root()));
    style_ = nullptr;
    return node;
  }

 private:
  // ---- Values --------------------------------------------------------------------------------

  /// What the schema says of values of that type.
  Json only(const char* type, const Json& schema) {
    return resolver_.merge(resolver_.resolve(schema), Json{{"type", Json::array({type})}});
  }

  /// Parameters and plain texts are no rules: that is the grammar of JSON values.
  [[nodiscard]] bool has_rules() const {
    return style_ == nullptr && json_.strings() != JsonStrings::kPlain;
  }

  /// As the grammar spells it.
  [[nodiscard]] std::string spelled(const Json& value) const {
    const bool is_plain = value.is_string() && json_.strings() == JsonStrings::kPlain;
    return is_plain ? value.get<std::string>() : dump(value);
  }

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
      if (schema.size() == 1 && schema.contains("$ref") &&
          &resolver_.target_of(schema["$ref"]) == &resolver_.root() && root_rule_)
        return builder_.rule(*root_rule_);
      return rule_for(schema);
    }
    return resolved_value_of(schema);
  }

  GrammarNodeId resolved_value_of(const Json& schema) {
    const Json* const resolved = resolver_.resolved(schema);
    return resolved_value(resolved != nullptr ? *resolved : resolver_.resolve(schema));
  }

  GrammarNodeId resolved_value(const Json& schema) {
    if (schema == Json(false)) return builder_.nothing();
    if (schema == Json(true)) return json_.any_value();
    if (schema.contains(kAnyOfs)) {
      Json base = schema;
      const Json groups = schema[kAnyOfs];
      const bool branch_first =
          schema.contains("properties") && comes_first(schema, kAnyOfs, "properties");
      if (groups.size() > 1)
        base[kAnyOfs] = Json(groups.begin() + 1, groups.end());
      else
        base.erase(kAnyOfs);
      const bool is_alone = groups.size() == 1 && base.empty() && has_rules();
      std::vector<GrammarNodeId> parts;
      for (const Json& branch : groups[0]) {
        if (is_alone) {
          parts.push_back(value(branch));
          continue;
        }
        Json resolved = resolver_.resolve(branch);
        const Json merged = branch_first ? resolver_.merge(std::move(resolved), base)
                                         : resolver_.merge(base, std::move(resolved));
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

  /// Equal for equal schemas: the order of keywords says nothing but where alternatives stand.
  static std::string key_of(const Json& schema) {
    if (!schema.is_object()) return dump(schema);
    std::vector<std::string> parts;
    for (const auto& [keyword, argument] : schema.items())
      parts.push_back(dump(keyword) + ":" + dump(argument));
    std::ranges::sort(parts);
    std::string key(comes_first(schema, kAnyOfs, "properties") ? "a" : "p");
    for (const std::string& part : parts) key += "," + part;
    return key;
  }

  /// A resolved schema as a rule of its own, so that joined schemas may lead back to themselves.
  GrammarNodeId merged_rule(const Json& schema) {
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
    if (style_ != nullptr) refuse("'enum' and 'const' of parameters are not supported");
    Json others = schema;
    others.erase("enum");
    std::shared_ptr<CompiledGrammar> accepts;
    const bool is_limited = !others.empty() && !(others.size() == 1 && others.contains("type"));
    if (is_limited)
      accepts =
          compile_alone([&](SchemaConversion& inner) { return inner.resolved_value(others); });
    std::vector<GrammarNodeId> parts;
    for (const Json& one : schema["enum"]) {
      if (schema.contains("type") && !includes_type(schema["type"], type_of(one))) continue;
      if (is_limited && !is_text_of(accepts, spelled(one))) continue;
      parts.push_back(constant(one));
    }
    return builder_.choice(parts);
  }

  /// A grammar of its own, to test texts with while this one is made; null if it has no texts.
  template <class Make>
  std::shared_ptr<CompiledGrammar> compile_alone(const Make& make) {
    const Nesting nesting(alone_depth_, kMaxAloneDepth, "constants with other keywords");
    GrammarBuilder builder(builder_.limits());
    SchemaConversion inner(builder, resolver_, json_.strings());
    inner.alone_depth_ = alone_depth_;
    inner.run(builder.add_rule(), [&](SchemaConversion& one, GrammarRuleId) { return make(one); });
    return compile_texts(builder);
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
    return builder_.repeat(json_.spelled_character(), min, max);
  }

  GrammarNodeId spelled_text(std::uint32_t min, std::uint32_t max,
                             const std::optional<GrammarNodeId>& patterns) {
    if (!patterns) return spelled_text(min, max);
    // Patterns take nothing but such characters.
    if (min == 0 && max == kUnbounded) return *patterns;
    return builder_.intersection(*patterns, spelled_text(min, max));
  }

  GrammarNodeId string(const Json& schema) {
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
    } else if (schema.contains(kContains)) {
      items = counted_items(schema, num_prefix, min, max);
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

  /// Items of which some match a schema, between two bounds.
  struct Counted {
    Json schema;
    std::optional<Json> others;  ///< what does not match, where there is an upper bound
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
    [[nodiscard]] std::uint32_t top() const { return max == kUnbounded ? min : max; }
  };

  Counted counted(const Json& argument) {
    Counted result{.schema = argument["contains"],
                   .others = {},
                   .min = argument["minContains"].get<std::uint32_t>()};
    if (argument.contains("maxContains")) {
      result.max = argument["maxContains"].get<std::uint32_t>();
      const auto others = resolver_.others(result.schema);
      if (!others) refuse("'maxContains' is supported for what 'not' is supported for");
      result.others = any_of(*others);
    }
    return result;
  }

  /// By how many items there have been, and how many that match. Without an upper bound an item
  /// that matches may be counted or not: it is enough that some way of counting fits.
  GrammarNodeId counted_items(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                              std::uint32_t max) {
    GrammarBuilder& b = builder_;
    std::vector<Counted> counts;
    for (const Json& one : schema[kContains]) counts.push_back(counted(one));
    if (counts.size() > kMaxContains)
      refuse("more than " + std::to_string(kMaxContains) +
             " of 'contains' that hold at once are not supported");
    const std::size_t num_kinds = std::size_t{1} << counts.size();
    // Items behind the last number that matters are alike.
    const auto before = static_cast<std::uint32_t>(num_prefix);
    const std::uint64_t top = max == kUnbounded ? std::max({before, min, 1u}) : max;
    std::uint64_t num_counts = 1;
    for (const Counted& one : counts)
      num_counts = std::min<std::uint64_t>(num_counts * (std::uint64_t{one.top()} + 1), 1u << 30);
    if ((top + 1) * num_counts * num_kinds > kMaxCountedStates)
      refuse("'contains' with these numbers of items takes too many states");
    std::vector<std::vector<GrammarNodeId>> items(std::min<std::uint64_t>(before, top) + 1);
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::size_t kind = 0; kind < num_kinds; ++kind) {
        Json item = item_schema(schema, i);
        for (std::size_t j = 0; j < counts.size(); ++j) {
          if ((kind >> j & 1) != 0) {
            item = all_of(item, counts[j].schema);
          } else if (counts[j].others) {
            item = all_of(item, *counts[j].others);
          }
        }
        items[i].push_back(value(item));
      }
    }
    std::vector<GrammarNodeId> states((top + 1) * num_counts);
    for (GrammarNodeId& state : states) state = b.rule(b.add_rule());
    for (std::uint64_t state = 0; state < states.size(); ++state) {
      const std::uint64_t i = state / num_counts;
      std::vector<GrammarNodeId> parts;
      bool may_end = i >= min;
      for (std::uint64_t kind = 0; kind < num_kinds; ++kind) {
        std::uint64_t rest = state % num_counts;
        std::uint64_t next = 0;
        std::uint64_t scale = 1;
        bool fits = i < max;
        for (std::size_t j = 0; j < counts.size(); ++j) {
          const std::uint64_t size = std::uint64_t{counts[j].top()} + 1;
          std::uint64_t count = rest % size;
          rest /= size;
          may_end = may_end && count >= counts[j].min;
          if ((kind >> j & 1) != 0) fits = fits && count++ < counts[j].max;
          next += std::min(count, size - 1) * scale;
          scale *= size;
        }
        const GrammarNodeId item = items[std::min<std::uint64_t>(i, items.size() - 1)][kind];
        if (!fits || item == b.nothing()) continue;
        parts.push_back(b.sequence({i == 0 ? b.empty() : json_.separator(','), item,
                                    states[std::min(i + 1, top) * num_counts + next]}));
      }
      if (may_end) parts.push_back(i == 0 ? b.empty() : json_.whitespace());
      b.set_body(b.nodes()[states[state]].first, b.choice(parts));
    }
    return states[0];
  }

  /// The values that a resolved schema takes at most, if they are few.
  static std::optional<Json> finite_values(const Json& schema) {
    if (schema == Json(false)) return Json::array();
    if (!schema.is_object()) return std::nullopt;
    Json values = Json::array();
    if (schema.contains("enum")) {
      for (const Json& one : schema["enum"])
        if (std::find(values.begin(), values.end(), one) == values.end()) values.push_back(one);
      return values;
    }
    for (const Json& type : types_of(schema)) {
      if (type == "null") {
        values.push_back(nullptr);
      } else if (type == "boolean") {
        values.push_back(true);
        values.push_back(false);
      } else if (type == "integer" && schema.contains("minimum") && schema.contains("maximum")) {
        const double first = std::ceil(schema["minimum"].get<double>());
        const double last = std::floor(schema["maximum"].get<double>());
        if (last - first >= static_cast<double>(kMaxUniqueValues) || std::abs(first) > 1e9)
          return std::nullopt;
        for (double number = first; number <= last; ++number)
          values.push_back(static_cast<std::int64_t>(number));
      } else {
        return std::nullopt;
      }
    }
    return values;
  }

  GrammarNodeId unique_items(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                             std::uint32_t max) {
    const Json items = resolver_.resolve(item_schema(schema, num_prefix));
    const auto finite = num_prefix == 0 ? finite_values(items) : std::nullopt;
    if (!finite) refuse("'uniqueItems' is supported for items that have few values only");
    if (schema.contains(kContains)) refuse("'contains' beside 'uniqueItems' is not supported");
    if (finite->size() > kMaxUniqueValues)
      refuse("'uniqueItems' of " + std::to_string(finite->size()) +
             " values is over the limit of " + std::to_string(kMaxUniqueValues));
    std::vector<GrammarNodeId> values;
    for (const Json& one : *finite) {
      Json single = items;
      single["enum"] = Json::array({one});
      const GrammarNodeId node = enumeration(single);
      if (node != builder_.nothing()) values.push_back(node);
    }
    max = static_cast<std::uint32_t>(std::min<std::size_t>(max, values.size()));
    if (min > max) return builder_.nothing();
    return std::size_t{1} << values.size() <= kMaxUniqueSets ? unique_by_sets(values, min, max)
                                                             : unique_by_value(values, min, max);
  }

  /// By the set of values that have been there.
  GrammarNodeId unique_by_sets(const std::vector<GrammarNodeId>& values, std::uint32_t min,
                               std::uint32_t max) {
    GrammarBuilder& b = builder_;
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

  /// A list of items for each value, in which it is at most once; all of them at once.
  GrammarNodeId unique_by_value(const std::vector<GrammarNodeId>& values, std::uint32_t min,
                                std::uint32_t max) {
    GrammarBuilder& b = builder_;
    const GrammarNodeId comma = json_.separator(',');
    const auto list = [&](GrammarNodeId item, std::uint32_t from, std::uint32_t to) {
      const std::uint32_t more = to == kUnbounded ? to : to - 1;
      const GrammarNodeId some =
          b.sequence({item, b.repeat(b.sequence({comma, item}), from > 0 ? from - 1 : 0, more)});
      return from == 0 ? b.choice({b.empty(), some}) : some;
    };
    GrammarNodeId result = list(b.choice(values), std::max(min, 1u), max);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::vector<GrammarNodeId> rest = values;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      const GrammarNodeId others = b.choice(rest);
      const GrammarNodeId once = b.sequence({b.repeat(b.sequence({others, comma}), 0), values[i],
                                             b.repeat(b.sequence({comma, others}), 0)});
      result = b.intersection(result, b.choice({list(others, 0, kUnbounded), once}));
    }
    const GrammarNodeId some = b.sequence({result, json_.whitespace()});
    return min > 0 ? some : b.choice({b.empty(), some});
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
    const Json schema = resolver_.resolve(unresolved);
    if (schema == Json(false)) return builder_.nothing();
    if (schema == Json(true)) return spelled_text(0, kUnbounded);
    if (schema.contains(kAnyOfs)) refuse("'propertyNames' with alternatives is not supported");
    if (!includes_type(types_of(schema), "string")) return builder_.nothing();
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

  GrammarNodeId name_content(const std::string& name) {
    const std::string spelled = dump(Json(name));
    return builder_.literal(std::string_view(spelled).substr(1, spelled.size() - 2));
  }

  GrammarNodeId object(const Json& schema) {
    // The style is that of the outermost object.
    const ParameterStyle* const style = std::exchange(style_, nullptr);
    const GrammarNodeId node = object(schema, style);
    style_ = style;
    return node;
  }

  /// The strings among the values of a parameter, as plain text.
  GrammarNodeId plain_text(const Json& schema, const ParameterStyle& style) {
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

  GrammarNodeId parameter(const std::string& name, const Json& schema,
                          const ParameterStyle& style) {
    GrammarBuilder& b = builder_;
    const bool is_text =
        std::find(style.texts.begin(), style.texts.end(), name) != style.texts.end();
    return b.sequence({b.literal(style.begin + name + (is_text ? style.text_middle : style.middle)),
                       is_text ? plain_text(schema, style) : value(schema), b.literal(style.end)});
  }

  GrammarNodeId object(const Json& schema, const ParameterStyle* style) {
    GrammarBuilder& b = builder_;
    const Json& named = property(schema, "properties");
    std::optional<GrammarNodeId> allowed_names;
    if (schema.contains("propertyNames")) allowed_names = names(schema["propertyNames"]);
    std::shared_ptr<CompiledGrammar> name_checker;
    if (allowed_names) name_checker = compile_names(schema["propertyNames"]);
    const auto allows = [&](const std::string& name) {
      return !allowed_names || is_text_of(name_checker, dump(Json(name)));
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
    for (const Json& name : required)
      if (!named.contains(name.get<std::string>()))
        add(name.get<std::string>(), resolver_.of_unnamed(schema, name.get<std::string>()));

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
         members(properties, more, min, max, json_.separator(','), json_.whitespace()),
         b.byte('}')});
  }

  std::shared_ptr<CompiledGrammar> compile_names(const Json& schema) {
    return compile_alone(
        [&](SchemaConversion& inner) { return inner.json_.quoted(inner.names(schema)); });
  }

  /// A name and a value beside the named ones.
  GrammarNodeId additional_pairs(const Json& schema, const std::vector<std::string>& excluded,
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

  /// The named properties in their order, then others; with `last` behind the last one.
  GrammarNodeId members(const std::vector<Property>& properties, GrammarNodeId more,
                        std::uint32_t min, std::uint32_t max, GrammarNodeId separator,
                        GrammarNodeId last) {
    GrammarBuilder& b = builder_;
    const bool counted = min > 0 || max != kUnbounded;
    // How many there have been matters up to here; without bounds only whether there was one.
    const std::uint32_t top = !counted ? 1 : max != kUnbounded ? max : min;
    if (counted && std::uint64_t{top} * (properties.size() + 1) > kMaxCountedStates)
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

  GrammarBuilder& builder_;
  JsonGrammar json_;
  SchemaResolver& resolver_;
  std::map<std::string, GrammarRuleId> rules_;
  std::map<std::string, GrammarRuleId> merged_rules_;
  std::deque<std::pair<GrammarRuleId, Json>> pending_;
  std::optional<GrammarRuleId> root_rule_;  ///< of the whole schema
  const ParameterStyle* style_ = nullptr;   ///< of the next object
  int merged_depth_ = 0;                    ///< of merged_rule
  int alone_depth_ = 0;                     ///< of compile_alone
};

}  // namespace
}  // namespace schema

namespace {

/// The rule is what `make` makes of the schema's conversion.
template <class Make>
GrammarNodeId add_schema(GrammarBuilder& builder, std::string_view source,
                         const JsonGrammarOptions& options, JsonStrings strings, const Make& make) {
  if (source.size() > builder.limits().max_source_bytes)
    throw GrammarRefused("json_schema: the schema has " + std::to_string(source.size()) +
                         " bytes, the limit is " +
                         std::to_string(builder.limits().max_source_bytes));
  const schema::Json root = schema::parse_schema(source);
  const GrammarRuleId start = builder.add_rule();
  try {
    schema::SchemaResolver resolver(root, options, builder.limits());
    schema::SchemaConversion(builder, resolver, strings).run(start, make);
  } catch (const schema::Json::exception& error) {
    throw GrammarRefused(std::string("json_schema: a keyword's value has the wrong type: ") +
                         error.what());
  }
  return builder.rule(start);
}

}  // namespace

GrammarNodeId add_json_schema(GrammarBuilder& builder, std::string_view schema,
                              const JsonGrammarOptions& options) {
  return add_schema(builder, schema, options, JsonStrings::kQuoted,
                    [](auto& conversion, GrammarRuleId start) { return conversion.whole(start); });
}

GrammarNodeId add_json_parameters(GrammarBuilder& builder, std::string_view schema,
                                  const JsonGrammarOptions& options, const ParameterStyle& style) {
  const auto strings = style.end.empty() ? JsonStrings::kQuoted : JsonStrings::kWithoutLess;
  return add_schema(builder, schema, options, strings,
                    [&](auto& conversion, GrammarRuleId) { return conversion.parameters(style); });
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