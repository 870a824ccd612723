#pragma once
// JSON Schema 2020-12 as a grammar. What a grammar cannot hold is refused by the keyword's name.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

struct JsonGrammarOptions {
  /// Between tokens: at most one line end, then a bounded number of blanks; false: nothing.
  bool any_whitespace = true;
  /// A regular expression in its place, if it is set.
  std::optional<std::string> whitespace_pattern;
  /// Objects have no properties but those that their schemas name, unless they say otherwise.
  bool disable_additional_properties = false;
  /// Properties come in any order; else in the schema's, and those that it does not name behind
  /// them. Constants keep theirs in arrays of unique items.
  bool any_order = false;
};

/// The texts of json_schema_grammar, as a part of a grammar. Throws GrammarRefused.
GrammarNodeId add_json_schema(GrammarBuilder& builder, std::string_view schema,
                              const JsonGrammarOptions& options);

/// How an object is written that is no JSON: its properties in the schema's order, each as begin,
/// name, middle, value, end.
struct ParameterStyle {
  std::string begin;
  std::string middle;
  std::string text_middle;  ///< in its place before those of `texts`
  std::string end;
  std::string separator;           ///< between two
  std::vector<std::string> texts;  ///< properties whose strings are written as they are
};

/// The objects that the schema takes, without properties that it does not name, written that way.
/// The end occurs in no value: texts are without it, JSON has \u003c for each '<'. Where `middle`
/// does not end with a line, texts neither begin nor end with one. Throws GrammarRefused.
GrammarNodeId add_json_parameters(GrammarBuilder& builder, std::string_view schema,
                                  const JsonGrammarOptions& options, const ParameterStyle& style);

/// The JSON texts that the schema takes, with the properties of an object in the order that the
/// options say. Numbers that have bounds are written without
/// exponents. Errors: kInvalidArgument: no schema, over a limit, a keyword that is refused.
Result<GrammarBuilder> json_schema_grammar(std::string_view schema,
                                           const JsonGrammarOptions& options = {},
                                           const GrammarLimits& limits = {});

/// Any JSON object.
Result<GrammarBuilder> json_object_grammar(const JsonGrammarOptions& options = {},
                                           const GrammarLimits& limits = {});

}  // namespace troupe
