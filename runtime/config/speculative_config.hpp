#pragma once
// The option speculative-config.

#include <string>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// From a JSON object as vLLM takes it: method ("ngram" or "draft_model"; with model it may be
/// missing), num_speculative_tokens (1 to 128); for "ngram" prompt_lookup_min and prompt_lookup_max
/// (each as the other one where one is missing, 5 where both are); for "draft_model" model. An
/// empty text: no speculative decoding. Errors name the key and its value.
[[nodiscard]] Result<SpeculativeDecoding> parse_speculative_config(const std::string& json);

}  // namespace troupe
