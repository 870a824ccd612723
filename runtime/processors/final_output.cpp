#include "runtime/processors/final_output.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe {

RequestOutput final_output(const GenerateRequest& request, std::optional<FinishReason> reason) {
  RequestOutput output;
  output.id = request.id;
  output.finished = true;
  for (std::int32_t i = 0; reason && i < request.params.n; ++i) {
    const EmittedSample* const emitted =
        request.emitted.empty() ? nullptr : &request.emitted[static_cast<std::size_t>(i)];
    if (emitted != nullptr && emitted->finished) continue;
    CompletionOutput& sample = output.outputs.emplace_back();
    sample.index = i;
    sample.finish_reason = reason;
    if (emitted != nullptr) sample.cumulative_logprob = emitted->cumulative_logprob;
  }
  return output;
}

}  // namespace troupe
