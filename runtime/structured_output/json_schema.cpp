#include "runtime/structured_output/json_schema.hpp"

#include <functional>
#include <string>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/schema_conversion.hpp"
#include "runtime/structured_output/schema_parser.hpp"

namespace troupe {
namespace {

/// The rule is what `make` makes of the schema's conversion.
GrammarNodeId add_schema(
    GrammarBuilder& builder, std::string_view source, const JsonGrammarOptions& options,
    JsonStrings strings,
    const std::function<GrammarNodeId(schema::SchemaConversion&, GrammarRuleId)>& make) {
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