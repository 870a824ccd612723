#pragma once
// Structured output of models that reason, and may call functions: they are free until their answer
// begins, and it may be calls.

#include <optional>
#include <string_view>

#include "messages/sampling_params.hpp"
#include "runtime/reasoning/reasoning_format.hpp"

namespace troupe {

/// Puts the format's reasoning before the structure, as a structural tag. `is_text`: the structure
/// is that of a text, not of calls. False: it is no structure; it is as it was, and what is wrong
/// with it is found where it is compiled.
[[nodiscard]] bool begin_with_reasoning(StructuredOutputsParams& structure,
                                        const ReasoningFormat& format, bool is_text = true);

/// The answer is a text of this structure, or calls: `calls` is the structural tag of an answer of
/// calls. `reasoning`: the format of the answer, if it is parsed. False: as begin_with_reasoning.
/// Then is_text of begin_with_reasoning is false.
[[nodiscard]] bool or_calls(StructuredOutputsParams& structure,
                            const std::optional<ReasoningFormat>& reasoning,
                            std::string_view calls);

}  // namespace troupe
