#pragma once

#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// One of the texts. Errors: kInvalidArgument: there are none, or they are over a limit.
Result<GrammarBuilder> choice_grammar(std::span<const std::string> choices,
                                      const GrammarLimits& limits = {});

}  // namespace troupe
