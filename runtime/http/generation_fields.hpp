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

/// Notes an error if `num_logprobs`, the value of field `name`, is more than the server gives.
void check_num_logprobs(const JsonFields& fields, std::string_view name,
                        const ServerDefaults& defaults, std::int64_t num_logprobs);

/// `requested` under the cap of the model's generation config.
[[nodiscard]] std::optional<std::int32_t> capped_max_tokens(std::optional<std::int64_t> requested,
                                                            const ServerDefaults& defaults);

}  // namespace troupe
