// A number is added to the logits of some tokens.

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

using Biases = SharedVector<std::pair<TokenId, float>>;

class LogitBias final : public LogitsProcessor {
 public:
  explicit LogitBias(Biases biases) : biases_(std::move(biases)) {}
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<LogitBias>(*this);
  }

  void apply(std::span<float> logits) const override {
    for (const auto& [token, bias] : biases_)
      if (float* const logit = logit_of(logits, token)) *logit += bias;
  }

 private:
  Biases biases_;
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_logit_bias(const LogitsProcessorInputs& inputs) {
  if (inputs.params.logit_bias.empty()) return nullptr;
  return std::make_unique<LogitBias>(inputs.params.logit_bias);
}

}  // namespace troupe
