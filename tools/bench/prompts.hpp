#pragma once
// Prompts of a benchmark, and arrival times.

#include <cstdint>
#include <istream>
#include <optional>
#include <vector>

#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe::tools {

struct BenchPrompt {
  Prompt prompt;
  std::int64_t num_input_tokens = 0;   ///< 0: not known before the response
  std::int64_t num_output_tokens = 0;  ///< requested
};

/// Random prompts. All lengths in tokens.
struct RandomPromptOptions {
  std::int64_t num_prompts = 1000;
  std::int64_t input_len = 1024;  ///< after the common prefix
  std::int64_t output_len = 128;
  std::int64_t prefix_len = 0;  ///< common to all prompts
  std::int64_t repeat_len = 0;  ///< prompts repeat their first tokens, this many; 0: no repetition
  double range_ratio = 0;       ///< lengths are uniform in len * [1 - ratio, 1 + ratio]
  std::uint64_t seed = 0;
};

/// Token ids, uniform in `vocabulary`. Pre: not empty.
[[nodiscard]] std::vector<BenchPrompt> random_token_prompts(const RandomPromptOptions& options,
                                                            const std::vector<TokenId>& vocabulary);
/// Common English words, each about one token in most vocabularies: for servers without a known
/// tokenizer.
[[nodiscard]] std::vector<BenchPrompt> random_word_prompts(const RandomPromptOptions& options);

/// Reads JSON lines {"prompt": "text", "output_tokens": 64}; `default_output_len` is used for lines
/// without a length. Errors: kCorrupt with the line's number.
[[nodiscard]] Result<std::vector<BenchPrompt>> read_prompts(std::istream& lines,
                                                            std::int64_t default_output_len);

/// When each request is sent, in seconds from the start. The gaps are gamma-distributed with mean
/// 1/rate and shape `burstiness` (1: a Poisson process, smaller: bursts), then scaled so that the
/// last request is at num_requests/rate. An infinite rate sends all at once.
[[nodiscard]] std::vector<double> arrival_times(std::int64_t num_requests, double rate,
                                                double burstiness, std::uint64_t seed);

}  // namespace troupe::tools
