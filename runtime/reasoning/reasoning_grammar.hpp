#pragma once
// Structured output of models that reason: they are free until their answer begins.

#include "messages/sampling_params.hpp"
#include "runtime/reasoning/reasoning_format.hpp"

namespace troupe {

/// Puts the format's reasoning before the structure, as a structural tag. False: it cannot be held,
/// since its markers are special tokens, or come several times; `structure` is as it was, and holds
/// from the first token. What is wrong with a structure is found where it is compiled.
[[nodiscard]] bool begin_with_reasoning(StructuredOutputsParams& structure,
                                        const ReasoningFormat& format);

}  // namespace troupe
