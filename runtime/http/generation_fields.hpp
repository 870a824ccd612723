#pragma once
// The part of a request that completions and chat share: sampling parameters and stream options.

#include "runtime/base/result.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Reads every shared field into `request`, laid over the model's defaults; what is wrong is noted
/// in `fields`. `request.params.max_tokens` and `logprobs` are the caller's: the two APIs differ.
void read_generation_fields(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request);

/// Checks what depends on several parameters, when all of them are set, and completes them.
void finish_sampling_params(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request);

/// What a request says of its prompts before they are tokenised.
struct PromptSizes {
  std::int64_t count = 0;
  std::int64_t num_tokens = 0;       ///< of those given as token ids
  std::int64_t num_bytes = 0;        ///< of those given as texts
  std::int64_t num_shown_bytes = 0;  ///< of text that each sample of the answer repeats
  std::int64_t num_shown_ids = 0;    ///< how often each sample of the answer repeats the token ids
};

/// Notes an error if the request is too large: samples, their tokens, and what the answer repeats.
/// When all else is read.
void check_request_size(const JsonFields& fields, const ServerDefaults& defaults,
                        const GenerationFields& request, const PromptSizes& prompts);

/// Notes an error if `num_logprobs`, the value of field `name`, is more than the server gives.
void check_num_logprobs(const JsonFields& fields, std::string_view name,
                        const ServerDefaults& defaults, std::int64_t num_logprobs);

/// `requested` under the cap of the model's generation config.
[[nodiscard]] std::optional<std::int32_t> capped_max_tokens(std::optional<std::int64_t> requested,
                                                            const ServerDefaults& defaults);

}  // namespace troupe
