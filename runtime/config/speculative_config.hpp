#pragma once
// The option speculative-config.

#include <cstdint>
#include <string>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Rows per step that a draft model computes beyond the request's own: the token sampled in the
/// step.
inline constexpr std::int32_t kDraftModelSlots = 1;

/// Parses vLLM's JSON object: method ("ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp" or
/// "deepseek_mtp"; with model alone it is "draft_model"), num_speculative_tokens (1 to 128; for
/// "mtp" 1 if it is missing); for "ngram" prompt_lookup_min and prompt_lookup_max (each defaults to
/// the other one, both to 5); for "suffix" suffix_decoding_*; for a draft model or head
/// quantization, max_model_len and, but for "mtp", model; for all adaptive, by default true.
/// draft_tensor_parallel_size may be 1 or the engine's: the draft model is sharded
/// over the model's workers, with the same result either way. Options that do not affect tokens
/// (enforce_eager etc.) are accepted and ignored; null means missing. Empty text: no speculative
/// decoding. Errors name the key and its value.
[[nodiscard]] Result<SpeculativeDecoding> parse_speculative_config(
    const std::string& json, std::int64_t tensor_parallel_size);

/// The same object with another "model". Pre: parse_speculative_config takes it, with a draft
/// model.
[[nodiscard]] std::string with_draft_model(const std::string& json, const std::string& model);

}  // namespace troupe
