#pragma once
// The option speculative-config.

#include <cstdint>
#include <string>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Rows that a draft model computes in a step beyond the request's own: the token that the step
/// samples.
inline constexpr std::int32_t kDraftModelSlots = 1;

/// From a JSON object as vLLM takes it: method ("ngram" or "draft_model"; with model it may be
/// missing), num_speculative_tokens (1 to 128); for "ngram" prompt_lookup_min and prompt_lookup_max
/// (each as the other one where one is missing, 5 where both are); for "draft_model" model,
/// quantization and max_model_len. draft_tensor_parallel_size may be 1 or the engine's: the draft
/// model is shared by the same workers as the model, and says the same either way. What changes no
/// token (enforce_eager and alike) is read and not used; null is as good as missing. An empty text:
/// no speculative decoding. Errors name the key and its value.
[[nodiscard]] Result<SpeculativeDecoding> parse_speculative_config(
    const std::string& json, std::int64_t tensor_parallel_size);

}  // namespace troupe
