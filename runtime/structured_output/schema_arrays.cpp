// Schemas of arrays.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_conversion.hpp"

namespace troupe::schema {
namespace {

constexpr std::size_t kMaxUniqueValues = 32;     ///< of an array with uniqueItems
constexpr std::size_t kMaxUniqueSets = 256;      ///< of them, as states
constexpr std::size_t kMaxContains = 3;          ///< of one array, from allOf
constexpr std::size_t kMaxArrayStates = 20'000;  ///< of an array whose parts count

/// The values that a resolved schema takes at most, if they are few.
std::optional<Json> finite_values(const Json& schema) {
  if (schema == Json(false)) return Json::array();
  if (!schema.is_object()) return std::nullopt;
  Json values = Json::array();
  if (schema.contains("enum")) {
    for (const Json& one : schema["enum"])
      if (std::find(values.begin(), values.end(), one) == values.end()) values.push_back(one);
    return values;
  }
  const TypeSet types = types_of(schema);
  for (const char* type : {"object", "array", "string", "number"})
    if (types.has(type)) return std::nullopt;
  if (types.has("null")) values.push_back(nullptr);
  if (types.has("boolean")) {
    values.push_back(true);
    values.push_back(false);
  }
  if (!types.has("integer")) return values;
  if (!schema.contains("minimum") || !schema.contains("maximum")) return std::nullopt;
  const double first = std::ceil(schema["minimum"].get<double>());
  const double last = std::floor(schema["maximum"].get<double>());
  if (last - first >= static_cast<double>(kMaxUniqueValues) || std::abs(first) > 1e9)
    return std::nullopt;
  for (double number = first; number <= last; ++number)
    values.push_back(static_cast<std::int64_t>(number));
  return values;
}

}  // namespace

struct SchemaConversion::Counted {
  Json schema;
  std::optional<Json> others;  ///< what does not match, where there is an upper bound
  std::uint32_t min = 0;
  std::uint32_t max = kUnbounded;
  [[nodiscard]] std::uint32_t top() const { return max == kUnbounded ? min : max; }
};

GrammarNodeId SchemaConversion::array(const Json& schema) {
  GrammarBuilder& b = builder_;
  auto [min, max] = bounds_of(schema, "minItems", "maxItems");
  if (schema.contains("prefixItems") && !schema["prefixItems"].is_array())
    refuse("'prefixItems' must be a list of schemas");
  const std::size_t num_prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
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

GrammarNodeId SchemaConversion::item_list(const Json& schema, std::size_t num_prefix,
                                          std::uint32_t min, std::uint32_t max) {
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
    if (before == 0) return optional_if(min == 0, b.sequence({item, more(1), json_.whitespace()}));
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

SchemaConversion::Counted SchemaConversion::counted(const Json& argument) {
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

GrammarNodeId SchemaConversion::counted_items(const Json& schema, std::size_t num_prefix,
                                              std::uint32_t min, std::uint32_t max) {
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
  if ((top + 1) * num_counts * num_kinds > kMaxArrayStates)
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

GrammarNodeId SchemaConversion::unique_items(const Json& schema, std::size_t num_prefix,
                                             std::uint32_t min, std::uint32_t max) {
  const Json items = resolver_.resolve(item_schema(schema, num_prefix));
  const auto finite = num_prefix == 0 ? finite_values(items) : std::nullopt;
  if (!finite) refuse("'uniqueItems' is supported for items that have few values only");
  if (schema.contains(kContains)) refuse("'contains' beside 'uniqueItems' is not supported");
  if (finite->size() > kMaxUniqueValues)
    refuse("'uniqueItems' of " + std::to_string(finite->size()) + " values is over the limit of " +
           std::to_string(kMaxUniqueValues));
  std::vector<GrammarNodeId> values;
  for (const Json& one : *finite) {
    Json single = items;
    single["enum"] = Json::array({one});
    const GrammarNodeId node = enumeration(single, false);
    if (node != builder_.nothing()) values.push_back(node);
  }
  max = static_cast<std::uint32_t>(std::min<std::size_t>(max, values.size()));
  if (min > max) return builder_.nothing();
  return std::size_t{1} << values.size() <= kMaxUniqueSets ? unique_by_sets(values, min, max)
                                                           : unique_by_value(values, min, max);
}

GrammarNodeId SchemaConversion::unique_by_sets(const std::vector<GrammarNodeId>& values,
                                               std::uint32_t min, std::uint32_t max) {
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

GrammarNodeId SchemaConversion::unique_by_value(const std::vector<GrammarNodeId>& values,
                                                std::uint32_t min, std::uint32_t max) {
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

}  // namespace troupe::schema
