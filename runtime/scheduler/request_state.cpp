#include "runtime/scheduler/request_state.hpp"

#include <algorithm>
#include <span>

#include "messages/kv_lookup.hpp"
#include "runtime/base/check.hpp"

namespace troupe {

FinishReason finish_reason(RequestStatus status) {
  switch (status) {
    case RequestStatus::kFinishedStopped:
    case RequestStatus::kWaitingForStreamingRequest:
      return FinishReason::kStop;
    case RequestStatus::kFinishedLengthCapped:
    case RequestStatus::kFinishedIgnored:
      return FinishReason::kLength;
    case RequestStatus::kFinishedAborted:
      return FinishReason::kAbort;
    case RequestStatus::kFinishedRepetition:
      return FinishReason::kRepetition;
    case RequestStatus::kFinishedTimeout:
      return FinishReason::kTimeout;
    default:
      CHECK(status == RequestStatus::kFinishedError, static_cast<int>(status));
      return FinishReason::kError;
  }
}

RequestState::RequestState(EngineCoreRequest request)
    : id(request.id),
      client_index(request.client_index),
      tenant(request.tenant),
      priority(request.priority),
      arrival_time(request.arrival_time),
      params(std::move(request.params)),
      lora(std::move(request.lora)),
      mm_features(std::move(request.mm_features)),
      pooling(request.pooling),
      second_text_begin(request.second_text_begin),
      resumable(request.resumable),
      resubmitted(!request.output_token_ids.empty()),
      token_ids(request.prompt_token_ids),
      num_prompt_tokens(static_cast<std::int32_t>(token_ids.size())),
      max_tokens(pooling ? 1 : params.max_tokens.value_or(1)),
      status(params.structured_outputs ? RequestStatus::kWaitingForGrammar
                                       : RequestStatus::kWaiting),
      session_id(std::move(request.session_id)),
      kv_transfer_params(std::move(request.kv_transfer_params)),
      only_looks_up(kv_transfer_params == kLookupParams) {
  if (!resubmitted) prefill_stats.emplace(PrefillStats{.num_prompt_tokens = num_prompt_tokens});
  if (!resubmitted) return;
  std::vector<TokenId>& all = token_ids.edit();
  all.insert(all.end(), request.output_token_ids.begin(), request.output_token_ids.end());
}

namespace {

/// Whether the last `pattern` tokens occur `count` times in a row.
bool repeats(std::span<const TokenId> outputs, std::size_t pattern, std::size_t count) {
  const auto tail = outputs.last(pattern * count);
  // Equal to itself shifted by one pattern.
  return std::equal(tail.begin() + static_cast<std::ptrdiff_t>(pattern), tail.end(), tail.begin());
}

bool is_repetitive(const RequestState& request) {
  const auto& rule = request.params.repetition_detection;
  if (!rule || rule->max_pattern_size <= 0 || rule->min_count <= 0) return false;
  const auto outputs = std::span(request.token_ids.get())
                           .subspan(static_cast<std::size_t>(request.num_prompt_tokens));
  const auto count = static_cast<std::size_t>(rule->min_count);
  for (std::int32_t size = std::max(1, rule->min_pattern_size); size <= rule->max_pattern_size;
       ++size) {
    const auto pattern = static_cast<std::size_t>(size);
    if (pattern * count > outputs.size()) return false;
    if (repeats(outputs, pattern, count)) return true;
  }
  return false;
}

}  // namespace

bool append_and_check_stop(RequestState& request, TokenId last, std::int32_t max_model_len) {
  request.token_ids.edit().push_back(last);
  const SamplingParams& params = request.params;
  if (params.eos_token_id == last) {
    request.status = RequestStatus::kFinishedStopped;
    return true;
  }
  if (std::find(params.stop_token_ids.begin(), params.stop_token_ids.end(), last) !=
      params.stop_token_ids.end()) {
    request.status = RequestStatus::kFinishedStopped;
    request.stop_reason = last;
    return true;
  }
  if (request.num_tokens() >= max_model_len || request.num_output_tokens() >= request.max_tokens) {
    request.status = RequestStatus::kFinishedLengthCapped;
    return true;
  }
  if (request.num_output_tokens() < params.min_tokens) return false;
  if (is_repetitive(request)) {
    request.status = RequestStatus::kFinishedRepetition;
    request.stop_reason = "repetition_detected";
    return true;
  }
  return false;
}

}  // namespace troupe
