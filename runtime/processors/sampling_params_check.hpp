#pragma once
// Normalizes and validates a client's sampling parameters.

#include <cstdint>
#include <string>
#include <vector>

#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

struct SamplingLimits {
  std::int32_t vocab_size = 0;
  std::int32_t max_logprobs = 20;       ///< kAllLogprobs: no limit
  std::int32_t max_num_samples = 1024;  ///< SamplingParams::n
};

/// Normalizes in vLLM's order (temperature floor, seed -1, duplicate stop ids), checks every field
/// against its range, and disables what a greedy request does not use (top_p, top_k, min_p).
/// Errors: kInvalidArgument that names field, value and range.
Result<void> normalize_sampling_params(SamplingParams& params, const SamplingLimits& limits);

/// The token sequences to forbid: each word as at the start of a text, and after a space if that
/// gives a different first token and the same length.
Result<std::vector<std::vector<TokenId>>> tokenize_bad_words(const Tokenizer& tokenizer,
                                                             const std::vector<std::string>& words,
                                                             const WorkLimits& limits = {});

}  // namespace troupe
