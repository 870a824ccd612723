#pragma once
// Makes the grammar of resolved schemas: of their values (schema_values.cpp), arrays
// (schema_arrays.cpp) and objects (schema_objects.cpp).

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/structured_output/json_grammar.hpp"
#include "runtime/structured_output/schema_resolver.hpp"

namespace troupe::schema {

/// Of one schema, whose resolver must outlive it. Everything throws GrammarRefused.
class SchemaConversion {
 public:
  static constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;

  SchemaConversion(GrammarBuilder& builder, SchemaResolver& resolver,
                   JsonStrings strings = JsonStrings::kQuoted);
  SchemaConversion(const SchemaConversion&) = delete;
  SchemaConversion& operator=(const SchemaConversion&) = delete;
  ~SchemaConversion();

  /// The rule is what `make` makes of this.
  void run(GrammarRuleId start,
           const std::function<GrammarNodeId(SchemaConversion&, GrammarRuleId)>& make);

  /// For the rule `start`.
  GrammarNodeId whole(GrammarRuleId start);
  GrammarNodeId parameters(const ParameterStyle& style);

 private:
  // ---- Values --------------------------------------------------------------------------------

  /// What the schema says of values of that type.
  Json only(const char* type, const Json& schema);
  /// Parameters and plain texts are no rules: that is the grammar of JSON values.
  [[nodiscard]] bool has_rules() const;
  /// As the grammar spells it.
  [[nodiscard]] std::string spelled(const Json& value) const;
  /// Where a reference leads to.
  GrammarNodeId rule_for_target(const Json& target);
  GrammarNodeId rule_for(const Json& schema);
  /// References and joined schemas may lead back to themselves: they are rules.
  GrammarNodeId value(const Json& schema);
  GrammarNodeId resolved_value_of(const Json& schema);
  GrammarNodeId resolved_value(const Json& schema);
  /// A resolved schema as a rule of its own, so that joined schemas may lead back to themselves.
  GrammarNodeId merged_rule(const Json& schema);
  /// Regular where the order of properties is that of the constant.
  GrammarNodeId constant(const Json& value, bool any_order);
  /// Its values, without those that the other keywords exclude.
  GrammarNodeId enumeration(const Json& schema, bool any_order);
  GrammarNodeId alternatives(const Json& schema, const Json& groups);
  /// A grammar of its own, to test texts with while this one is made; null if it has no texts.
  std::shared_ptr<CompiledGrammar> compile_alone(
      const std::function<GrammarNodeId(SchemaConversion&)>& make);

  // ---- Strings and numbers -------------------------------------------------------------------

  std::pair<std::uint32_t, std::uint32_t> bounds_of(const Json& schema, const char* min_key,
                                                    const char* max_key);
  /// The content of strings that `pattern` and `format` hold; none if there are no such.
  std::optional<GrammarNodeId> patterns_of(const Json& schema);
  GrammarNodeId spelled_text(std::uint32_t min, std::uint32_t max);
  GrammarNodeId spelled_text(std::uint32_t min, std::uint32_t max,
                             const std::optional<GrammarNodeId>& patterns);
  GrammarNodeId string(const Json& schema);
  GrammarNodeId number(const Json& schema, bool integer);

  // ---- Arrays --------------------------------------------------------------------------------

  GrammarNodeId array(const Json& schema);
  /// With white space behind the last one, unless there is none.
  GrammarNodeId item_list(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                          std::uint32_t max);
  /// Items of which some match a schema, between two bounds.
  struct Counted;
  Counted counted(const Json& argument);
  /// By how many items there have been, and how many that match. Without an upper bound an item
  /// that matches may be counted or not: it is enough that some way of counting fits.
  GrammarNodeId counted_items(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                              std::uint32_t max);
  GrammarNodeId unique_items(const Json& schema, std::size_t num_prefix, std::uint32_t min,
                             std::uint32_t max);
  /// By the set of values that have been there.
  GrammarNodeId unique_by_sets(const std::vector<GrammarNodeId>& values, std::uint32_t min,
                               std::uint32_t max);
  /// A list of items for each value, in which it is at most once; all of them at once.
  GrammarNodeId unique_by_value(const std::vector<GrammarNodeId>& values, std::uint32_t min,
                                std::uint32_t max);

  // ---- Objects -------------------------------------------------------------------------------

  struct Property {
    std::string name;
    bool required = false;
    GrammarNodeId pair = 0;
  };
  GrammarNodeId pair(GrammarNodeId name, GrammarNodeId value);
  /// The content of the names that a schema takes.
  GrammarNodeId names(const Json& unresolved);
  GrammarNodeId name_content(const std::string& name);
  GrammarNodeId object(const Json& schema);
  /// The strings among the values of a parameter, as plain text.
  GrammarNodeId plain_text(const Json& schema, const ParameterStyle& style);
  GrammarNodeId parameter(const std::string& name, const Json& schema, const ParameterStyle& style);
  GrammarNodeId object(const Json& schema, const ParameterStyle* style);
  std::shared_ptr<CompiledGrammar> compile_names(const Json& schema);
  /// A name and a value beside the named ones.
  GrammarNodeId additional_pairs(const Json& schema, const std::vector<std::string>& excluded,
                                 const std::optional<GrammarNodeId>& allowed_names);
  GrammarNodeId unordered_members(const std::vector<Property>& properties, GrammarNodeId more,
                                  std::uint32_t min, std::uint32_t max);
  /// The named properties in their order, then others; with `last` behind the last one.
  GrammarNodeId members(const std::vector<Property>& properties, GrammarNodeId more,
                        std::uint32_t min, std::uint32_t max, GrammarNodeId separator,
                        GrammarNodeId last);

  GrammarBuilder& builder_;
  JsonGrammar json_;
  SchemaResolver& resolver_;
  std::unordered_map<const Json*, GrammarRuleId> target_rules_;
  std::unordered_map<std::string, GrammarRuleId> rules_;
  std::unordered_map<std::string, GrammarRuleId> merged_rules_;
  std::deque<std::pair<GrammarRuleId, const Json*>> pending_;
  std::vector<std::unique_ptr<const Json>> pending_schemas_;  ///< those of rule_for
  std::optional<GrammarRuleId> root_rule_;                    ///< of the whole schema
  const ParameterStyle* style_ = nullptr;                     ///< of the next object
  int merged_depth_ = 0;                                      ///< of merged_rule
  int alone_depth_ = 0;                                       ///< of compile_alone
};

}  // namespace troupe::schema
