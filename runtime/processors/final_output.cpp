#include "runtime/processors/final_output.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

namespace troupe {
namespace {

template <class T>
void append(std::vector<T>& into, std::vector<T>&& from) {
  into.insert(into.end(), std::make_move_iterator(from.begin()),
              std::make_move_iterator(from.end()));
}

void append_sample(std::vector<CompletionOutput>& into, CompletionOutput&& from) {
  const auto known = std::find_if(into.begin(), into.end(), [&](const CompletionOutput& sample) {
    return sample.index == from.index;
  });
  if (known == into.end()) {
    into.push_back(std::move(from));
    return;
  }
  known->text += from.text;
  append(known->token_ids, std::move(from.token_ids));
  append(known->logprobs, std::move(from.logprobs));
  known->cumulative_logprob = from.cumulative_logprob;
  known->finish_reason = from.finish_reason;
  known->stop_reason = std::move(from.stop_reason);
}

}  // namespace

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

void append_output(RequestOutput& into, RequestOutput&& from) {
  into.id = from.id;
  // Sent with the first output only; a resubmitted request has already received it.
  append(into.prompt_token_ids, std::move(from.prompt_token_ids));
  into.prompt_text += from.prompt_text;
  append(into.prompt_logprobs, std::move(from.prompt_logprobs));
  into.first_token_text += from.first_token_text;
  if (from.prefill_stats && !into.prefill_stats) {
    into.prefill_stats = from.prefill_stats;
    into.num_cached_tokens = from.num_cached_tokens;
  }
  for (CompletionOutput& sample : from.outputs) append_sample(into.outputs, std::move(sample));
  append(into.finished_times, std::move(from.finished_times));
  if (!from.kv_transfer_params.empty())
    into.kv_transfer_params = std::move(from.kv_transfer_params);
  if (!from.ec_transfer_params.empty())
    into.ec_transfer_params = std::move(from.ec_transfer_params);
  into.finished = from.finished;
  into.error = std::move(from.error);
  if (!into.finished) return;
  std::sort(into.outputs.begin(), into.outputs.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
}

}  // namespace troupe
