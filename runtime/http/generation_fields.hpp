#pragma once
// The fields shared by completions and chat: sampling parameters and stream options.

#include "runtime/base/result.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Reads the shared fields into `request`, on top of the model's defaults; errors are recorded in
/// `fields`. `request.params.max_tokens` and `logprobs` are set by the caller, since the two APIs
/// differ.
void read_generation_fields(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request);

/// Reads `cache_salt`.
void read_cache_salt(const JsonFields& fields, GenerationFields& request);

/// The server does not schedule by priority.
[[nodiscard]] Error not_by_priority(std::int32_t priority);
/// Reads `priority`. Refused where requests are not scheduled by it.
void read_priority(const JsonFields& fields, const ServerDefaults& defaults,
                   GenerationFields& request);

/// Reads `thinking_token_budget`, for outputs that begin with reasoning, or in it. Nothing: the
/// request has turned it off.
void read_thinking_budget(const JsonFields& fields, const ServerDefaults& defaults,
                          const std::optional<ReasoningFormat>& reasoning, SamplingParams& params);

/// Validates combinations of parameters, when all of them are set, and completes them.
void finish_sampling_params(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request);

/// The prompts in a field: one string, an array of strings, one array of token ids, or an array of
/// those. Records an error if there is none, or more than max_count.
[[nodiscard]] std::vector<Prompt> read_prompts(const JsonFields& fields, std::string_view name,
                                               std::int32_t vocab_size, std::size_t max_count);

/// The size of a request's prompts before tokenization.
struct PromptSizes {
  std::int64_t count = 0;
  std::int64_t num_tokens = 0;       ///< of prompts given as token ids
  std::int64_t num_bytes = 0;        ///< of prompts given as texts
  std::int64_t num_shown_bytes = 0;  ///< prompt text repeated by each sample of the response
  std::int64_t num_shown_ids = 0;    ///< how often each sample repeats the prompt token ids
};

/// Records an error if the request is too large: samples, their tokens, and repeated prompt text.
/// Called after all fields are read.
void check_request_size(const JsonFields& fields, const ServerDefaults& defaults,
                        const GenerationFields& request, const PromptSizes& prompts);

/// Records an error if `num_logprobs`, the value of field `name`, exceeds the server's limit.
void check_num_logprobs(const JsonFields& fields, std::string_view name,
                        const ServerDefaults& defaults, std::int64_t num_logprobs);

/// `requested`, capped by the model's generation config.
[[nodiscard]] std::optional<std::int32_t> capped_max_tokens(std::optional<std::int64_t> requested,
                                                            const ServerDefaults& defaults);

}  // namespace troupe
