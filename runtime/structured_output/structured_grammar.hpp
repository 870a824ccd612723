#pragma once
// What a request asks for as a grammar.

#include <span>
#include <string>

#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// `special_tokens`: of the vocabulary, for structural tags that name them. Errors: those of the
/// front end of its kind, with what.field as their field.
Result<GrammarBuilder> structured_grammar(const StructuredOutputsParams& what,
                                          const GrammarLimits& limits = {},
                                          std::span<const std::string> special_tokens = {});

}  // namespace troupe
