#include "runtime/processors/split_request.hpp"

#include <utility>

namespace troupe {

bool may_split(const GenerateRequest& request, const Placement& placement) {
  const SamplingParams& params = request.params;
  return request.emitted.empty() && !request.pooling && placement.kv_transfer_params.empty() &&
         !params.prompt_logprobs && !request.truncate_prompt_tokens &&
         !params.skip_reading_prefix_cache && params.max_tokens != 1;
}

GenerateRequest prompt_of(const GenerateRequest& request) {
  GenerateRequest prompt = request;
  SamplingParams params;
  params.max_tokens = 1;
  params.temperature = 0;
  params.ignore_eos = true;
  params.detokenize = false;
  params.output_kind = OutputKind::kDelta;
  params.philox_key = request.params.philox_key;
  prompt.params = std::move(params);
  prompt.return_prompt_text = false;
  return prompt;
}

}  // namespace troupe
