#include "runtime/worker/sampling_state.hpp"

#include "runtime/base/check.hpp"

namespace troupe {

SamplingState::SamplingState(const SamplingParams& params, std::span<const TokenId> token_ids,
                             std::size_t num_prompt_tokens, const TranscriptionRules* transcription)
    : params_(params), num_tokens_(num_prompt_tokens) {
  CHECK(num_prompt_tokens <= token_ids.size(), num_prompt_tokens, token_ids.size());
  processors_ = make_logits_processors({params, token_ids.first(num_prompt_tokens), transcription});
  for (const TokenId token : token_ids.subspan(num_prompt_tokens)) append(token);
}

SamplingState::SamplingState(const SamplingState& other)
    : params_(other.params_), num_tokens_(other.num_tokens_) {
  for (const auto& processor : other.processors_) processors_.push_back(processor->clone());
}

void SamplingState::append(TokenId token) {
  ++num_tokens_;
  for (const auto& processor : processors_) processor->append(token);
}

void SamplingState::process_logits(std::span<float> logits) const {
  for (const auto& processor : processors_) processor->apply(logits);
}

}  // namespace troupe
