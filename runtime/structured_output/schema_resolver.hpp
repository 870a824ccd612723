#pragma once
// JSON Schemas before they are grammars: references are followed, schemas that hold at once are
// joined, and it is said which values a schema does not take.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/schema_keywords.hpp"

namespace troupe::schema {

/// A grammar to test texts with; null if it has none. Throws GrammarRefused.
[[nodiscard]] std::shared_ptr<CompiledGrammar> compile_texts(const GrammarBuilder& builder);
[[nodiscard]] bool is_text_of(const std::shared_ptr<CompiledGrammar>& grammar,
                              std::string_view text);

/// Of one schema, which must outlive it. A resolved schema is false, true or an object without
/// $ref, allOf, anyOf, oneOf, not, if, const and dependencies, its keywords checked. Everything
/// throws GrammarRefused where a schema is wrong, too large, or beyond what can be said.
class SchemaResolver {
 public:
  SchemaResolver(const Json& root, const JsonGrammarOptions& options, const GrammarLimits& limits);

  [[nodiscard]] const Json& root() const noexcept { return root_; }
  [[nodiscard]] const JsonGrammarOptions& options() const noexcept { return options_; }
  /// Does the schema say nothing but what it refers to? Up to draft 7 that is so of each that
  /// refers to another one.
  [[nodiscard]] bool only_refers(const Json& schema) const;
  /// Where a $ref leads to.
  [[nodiscard]] const Json& target_of(const Json& reference) const;
  Json resolve(const Json& schema, int depth = 0);
  /// The schema, or what it refers to, if that is resolved but for keywords that say nothing of a
  /// value: most are, and a copy of each would hold all that is in it. Null: resolve() it.
  [[nodiscard]] const Json* resolved(const Json& schema) const;
  /// The branches of a schema that says nothing but anyOf; else null.
  [[nodiscard]] static const Json* only_alternatives(const Json& schema);
  /// A schema for what both take. Pre: both are resolved; so is the result.
  Json merge(Json a, Json b);
  /// Schemas that together take exactly the values that this one does not take, for a list of
  /// alternatives; none if that cannot be said.
  std::optional<Json> others(const Json& schema);
  /// What a resolved schema says of a property that it does not name.
  Json of_unnamed(const Json& schema, const std::string& name);
  bool name_matches(const std::string& pattern, const std::string& name);

 private:
  void find_ids(const Json& schema, bool is_root);
  void merge_objects(const Json& a, Json& b, Json& result);

  // In schema_unevaluated.cpp.
  static bool has_unevaluated(const Json& schema);
  /// The same schema in other words. Pre: it has such keywords.
  Json without_unevaluated(const Json& schema);
  struct Alternative;
  /// Together they take what the schema takes if its own unevaluated* are left out.
  std::vector<Alternative> alternatives(const Json& schema, int depth);
  std::vector<Alternative> part_alternatives(const Json& schema, int depth);

  // In schema_negation.cpp.
  /// The branches of a schema's oneOf, each without what it shares with others.
  Json exclusive_branches(const Json& schema);
  /// A list for $anyOfs, also if nothing is allowed.
  Json negation_or_refuse(const Json& schema, const std::string& keyword);
  Json conditional(const Json& schema);
  /// Schemas that together take exactly the values that this one does not take; nothing if that
  /// cannot be said. `schema`: a resolved one.
  std::optional<Json> negation(const Json& schema, int depth);
  std::optional<Json> negation_of(const std::string& key, const Json& argument, const Json& schema,
                                  int depth);
  std::optional<Json> other_values(const Json& values, int depth);
  std::optional<Json> other_structures(const Json& values, const char* type, int depth);
  std::optional<Json> other_properties(const Json& properties, int depth);
  std::optional<Json> other_prefix(const Json& prefix, int depth);
  std::optional<Json> other_branches(const Json& groups, int depth);
  bool are_disjoint(const Json& a, const Json& b, int depth);
  bool excludes_required(const Json& a, const Json& b);
  bool differ_in_a_property(const Json& a, const Json& b, int depth);

  const Json& root_;
  const JsonGrammarOptions options_;
  const GrammarLimits limits_;
  std::string root_id_;
  bool is_old_draft_ = false;  ///< 3 to 7
  std::map<std::string, const Json*> ids_;
  std::map<std::string, std::shared_ptr<CompiledGrammar>> name_patterns_;
  int nesting_ = 0;  ///< of oneOf, not and if
  std::size_t num_merges_ = 0;
};

}  // namespace troupe::schema
