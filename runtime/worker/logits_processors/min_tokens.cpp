// Forbids the tokens that end the request before it has min_tokens.

#include <algorithm>
#include <limits>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

class MinTokens final : public LogitsProcessor {
 public:
  MinTokens(std::int32_t min_tokens, SharedVector<TokenId> stop_token_ids)
      : num_missing_(min_tokens), stop_token_ids_(std::move(stop_token_ids)) {}
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<MinTokens>(*this);
  }

  void append(TokenId /*token*/) override { num_missing_ -= num_missing_ > 0; }
  void apply(std::span<float> logits) const override {
    if (num_missing_ == 0 || only_ends(logits)) return;
    for (const TokenId token : stop_token_ids_) forbid(logits, token);
  }

 private:
  /// Under a grammar, which comes before, the text may be complete.
  [[nodiscard]] bool only_ends(std::span<const float> logits) const {
    for (std::size_t token = 0; token < logits.size(); ++token) {
      if (logits[token] != -std::numeric_limits<float>::infinity() &&
          std::find(stop_token_ids_.begin(), stop_token_ids_.end(), static_cast<TokenId>(token)) ==
              stop_token_ids_.end())
        return false;
    }
    return true;
  }

  std::int32_t num_missing_;
  SharedVector<TokenId> stop_token_ids_;
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_min_tokens(const LogitsProcessorInputs& inputs) {
  if (inputs.params.min_tokens <= 0) return nullptr;
  return std::make_unique<MinTokens>(inputs.params.min_tokens, inputs.params.all_stop_token_ids);
}

}  // namespace troupe
