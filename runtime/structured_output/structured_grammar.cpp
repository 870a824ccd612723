#include "runtime/structured_output/structured_grammar.hpp"

#include <string>
#include <string_view>

#include "runtime/structured_output/choice.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/structured_output/lark.hpp"
#include "runtime/structured_output/regex.hpp"
#include "runtime/structured_output/structural_tag.hpp"

namespace troupe {
namespace {

/// It may be as large as a request: each sample has a copy of it.
constexpr std::size_t kMaxWhitespacePatternBytes = 4096;

Result<JsonGrammarOptions> json_options(const StructuredOutputsParams& what) {
  if (what.whitespace_pattern && what.whitespace_pattern->size() > kMaxWhitespacePatternBytes) {
    return invalid_argument("whitespace_pattern has " +
                            std::to_string(what.whitespace_pattern->size()) +
                            " bytes, the limit is " + std::to_string(kMaxWhitespacePatternBytes));
  }
  return JsonGrammarOptions{.any_whitespace = !what.disable_any_whitespace,
                            .whitespace_pattern = what.whitespace_pattern,
                            .disable_additional_properties = what.disable_additional_properties,
                            .any_order = what.any_order};
}

Result<GrammarBuilder> json_grammar(const StructuredOutputsParams& what,
                                    const GrammarLimits& limits) {
  ASSIGN_OR_RETURN(const JsonGrammarOptions options, json_options(what));
  if (what.kind == StructuredOutputKind::kJsonObject) return json_object_grammar(options, limits);
  return json_schema_grammar(what.texts.front(), options, limits);
}

Result<GrammarBuilder> grammar_of(const StructuredOutputsParams& what, const GrammarLimits& limits,
                                  std::span<const std::string> special_tokens) {
  using Kind = StructuredOutputKind;
  if (what.kind == Kind::kChoice) return choice_grammar(what.texts, limits);
  const bool is_json_object = what.kind == Kind::kJsonObject;
  if (what.texts.size() != (is_json_object ? 0 : 1)) {
    return invalid_argument("structured output has " + std::to_string(what.texts.size()) +
                            " texts, expected " + (is_json_object ? "none" : "one"));
  }
  switch (what.kind) {
    case Kind::kJsonSchema:
    case Kind::kJsonObject:
      return json_grammar(what, limits);
    case Kind::kRegex:
      return regex_grammar(what.texts.front(), limits);
    case Kind::kGrammar:
      return ebnf_or_lark_grammar(what.texts.front(), limits);
    case Kind::kStructuralTag: {
      ASSIGN_OR_RETURN(const JsonGrammarOptions options, json_options(what));
      return structural_tag_grammar(what.texts.front(), options, limits, special_tokens);
    }
    case Kind::kChoice:
      break;
  }
  CHECK(false, static_cast<int>(what.kind));
  return GrammarBuilder(limits);
}

}  // namespace

Result<GrammarBuilder> structured_grammar(const StructuredOutputsParams& what,
                                          const GrammarLimits& limits,
                                          std::span<const std::string> special_tokens) {
  auto grammar = grammar_of(what, limits, special_tokens);
  if (grammar.ok()) return grammar;
  Error error = std::move(grammar).error();
  error.param = what.field;
  return error;
}

}  // namespace troupe
