#include "runtime/worker/logits_processors/logits_processor.hpp"

#include <limits>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

/// As vLLM applies them. A grammar's mask comes before all of them, and before log-probabilities
/// are taken (token_bitmask.hpp); the temperature, min_p, top_k and top_p come behind them: they
/// choose who may be drawn, in one pass (SamplingDistribution).
constexpr MakeLogitsProcessor* kInOrder[] = {
    make_allowed_token_ids,  //
    make_bad_words,          //
    make_min_tokens,         //
    make_logit_bias,         //
    make_penalties,          //
    make_thinking_budget,    //
    make_transcription_rules,
};

}  // namespace

std::vector<std::unique_ptr<LogitsProcessor>> make_logits_processors(
    const LogitsProcessorInputs& inputs) {
  std::vector<std::unique_ptr<LogitsProcessor>> processors;
  for (MakeLogitsProcessor* const make : kInOrder)
    if (auto processor = make(inputs)) processors.push_back(std::move(processor));
  return processors;
}

void forbid(std::span<float> logits, TokenId token) noexcept {
  if (float* const logit = logit_of(logits, token))
    *logit = -std::numeric_limits<float>::infinity();
}

}  // namespace troupe
