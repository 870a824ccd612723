#pragma once
// Structural tags: free text, in which what begins with a trigger or a tag is held to a format.

#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"
#include "runtime/structured_output/json_schema.hpp"

namespace troupe {

/// `source`: a JSON object of one of two forms.
///
///   {"structures": [{"begin": "...", "schema": {...}, "end": "..."}], "triggers": ["..."]}
///   {"format": FORMAT}
///
/// A FORMAT is an object with a "type" and
///
///   const_string         value
///   json_schema          json_schema
///   regex                pattern
///   grammar              grammar (EBNF or Lark)
///   parameters           json_schema; begin, middle, text_middle, end, separator (texts around
///                        names and values), texts (names): an object as ParameterStyle has it
///   any_text             excludes (texts, optional): text without them, and without the end of the
///                        tag that it is in
///   sequence, or         elements
///   tag                  begin, content, end (a text or several)
///   triggered_tags       triggers, tags, at_least_one, stop_after_first: text in which each
///   trigger
///                        begins one of the tags whose "begin" starts with it
///   tags_with_separator  tags, separator, at_least_one, stop_after_first
///
/// With "special_tokens": true, a special token of the model (`special_tokens` are their spellings)
/// within a const_string, or within a text around a tag, its triggers or parameters, is that token,
/// as in a prompt; and the free text of any_text and triggered_tags may have other special tokens.
///
/// Errors: kInvalidArgument, which name the field; those of schemas, expressions and grammars.
Result<GrammarBuilder> structural_tag_grammar(std::string_view source,
                                              const JsonGrammarOptions& options = {},
                                              const GrammarLimits& limits = {},
                                              std::span<const std::string> special_tokens = {});

}  // namespace troupe
