#pragma once
// Structured output of models that reason: they are free until their answer begins.

#include "messages/sampling_params.hpp"
#include "runtime/reasoning/reasoning_format.hpp"

namespace troupe {

/// Puts the format's reasoning before the structure, as a structural tag. `is_text`: the structure
/// is that of a text, not of calls. False: it is no structure; it is as it was, and what is wrong
/// with it is found where it is compiled.
[[nodiscard]] bool begin_with_reasoning(StructuredOutputsParams& structure,
                                        const ReasoningFormat& format, bool is_text = true);

}  // namespace troupe
