// Repetition penalty for the tokens of prompt and outputs, then frequency and presence penalty for
// those of the outputs.

#include <unordered_map>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

class Penalties final : public LogitsProcessor {
 public:
  Penalties(const SamplingParams& params, std::span<const TokenId> prompt)
      : repetition_(params.repetition_penalty),
        frequency_(params.frequency_penalty),
        presence_(params.presence_penalty) {
    if (repetition_ == 1) return;
    for (const TokenId token : prompt) num_outputs_.try_emplace(token);
  }
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<Penalties>(*this);
  }

  void append(TokenId token) override { ++num_outputs_[token]; }

  void apply(std::span<float> logits) const override {
    for (const auto& [token, num_outputs] : num_outputs_) {
      float* const logit = logit_of(logits, token);
      if (logit == nullptr) continue;
      *logit = *logit > 0 ? *logit / repetition_ : *logit * repetition_;
      if (num_outputs == 0) continue;
      *logit -= frequency_ * static_cast<float>(num_outputs);
      *logit -= presence_;
    }
  }

 private:
  float repetition_;
  float frequency_;
  float presence_;
  std::unordered_map<TokenId, std::int32_t> num_outputs_;  // 0: only in the prompt
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_penalties(const LogitsProcessorInputs& inputs) {
  if (inputs.params.repetition_penalty == 1 && inputs.params.frequency_penalty == 0 &&
      inputs.params.presence_penalty == 0)
    return nullptr;
  return std::make_unique<Penalties>(inputs.params, inputs.prompt);
}

}  // namespace troupe
