#pragma once
// What a request asks for as a grammar.

#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// Errors: those of the front end of its kind, with what.field as their field.
Result<GrammarBuilder> structured_grammar(const StructuredOutputsParams& what,
                                          const GrammarLimits& limits = {});

}  // namespace troupe
