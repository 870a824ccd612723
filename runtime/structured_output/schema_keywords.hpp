#pragma once
// What a JSON Schema's keywords say, one at a time. Each function refuses what has the wrong type,
// by throwing GrammarRefused.

#include <array>
#include <bitset>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/structured_output/json_grammar.hpp"

namespace troupe::schema {

using Json = nlohmann::ordered_json;

/// These are ours: no client's schema has them behind SchemaResolver::resolve(). kAnyOfs: a list of
/// lists of schemas, one of each list holds. kContains: a list of {contains, minContains,
/// maxContains}. The others: strings are none of these texts, and match none of these patterns;
/// numbers are multiples of none of these.
constexpr const char* kAnyOfs = "$anyOfs";
constexpr const char* kContains = "$contains";
constexpr const char* kNotTexts = "\x01notTexts";
constexpr const char* kNotPatterns = "\x01notPatterns";
constexpr const char* kNotMultiples = "\x01notMultiples";

constexpr std::array<std::string_view, 7> kTypes{"null",   "boolean", "integer", "number",
                                                 "string", "array",   "object"};

[[noreturn]] void refuse(const std::string& what);
[[nodiscard]] std::string quote(std::string_view text);
[[nodiscard]] std::string dump(const Json& json);

/// Counts what stands within each other, or leads to each other.
class Nesting {
 public:
  Nesting(int& depth, int limit, std::string_view what);
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

[[nodiscard]] std::string_view type_of(const Json& value);
/// `types`: a list, or one.
[[nodiscard]] bool includes_type(const Json& types, std::string_view type);
/// Types of values; "number" has "integer" in it.
class TypeSet {
 public:
  void add(std::string_view type);
  [[nodiscard]] bool has(std::string_view type) const;
  [[nodiscard]] bool empty() const { return bits_.none(); }
  [[nodiscard]] TypeSet operator&(const TypeSet& other) const;
  bool operator==(const TypeSet&) const = default;

 private:
  std::bitset<kTypes.size()> bits_;  ///< by place in kTypes
};
/// The types of its values, as far as `enum` and `type` say.
[[nodiscard]] TypeSet types_of(const Json& schema);

/// A resolved schema has it, beside what is resolved.
[[nodiscard]] bool is_kept(std::string_view keyword);
/// An annotation, what other schemas refer to, or unknown.
[[nodiscard]] bool says_nothing(std::string_view keyword);

[[nodiscard]] const Json& list_of_schemas(const std::string& key, const Json& argument);
[[nodiscard]] Decimal number_of(const std::string& key, const Json& value);
[[nodiscard]] std::uint32_t count_of(const std::string& key, const Json& value);
/// The object of that keyword, an empty one if there is none.
[[nodiscard]] const Json& property(const Json& schema, const char* key);
/// Of properties that neither `properties` nor `patternProperties` concern.
[[nodiscard]] const Json& additional(const Json& schema);
[[nodiscard]] const Json& item_schema(const Json& schema, std::size_t index);

/// Is `first` there, and not behind `second`?
[[nodiscard]] bool comes_first(const Json& schema, std::string_view first, std::string_view second);
[[nodiscard]] Json all_of(const Json& a, const Json& b);
[[nodiscard]] Json any_of(const Json& schemas);
/// Objects without that property.
[[nodiscard]] Json without(const std::string& property);

}  // namespace troupe::schema
