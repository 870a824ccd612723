// No token that ends the request before it has so many.

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
    if (num_missing_ == 0) return;
    for (const TokenId token : stop_token_ids_) forbid(logits, token);
  }

 private:
  std::int32_t num_missing_;
  SharedVector<TokenId> stop_token_ids_;
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_min_tokens(const SamplingParams& params,
                                                 std::span<const TokenId> /*prompt*/) {
  if (params.min_tokens <= 0) return nullptr;
  return std::make_unique<MinTokens>(params.min_tokens, params.all_stop_token_ids);
}

}  // namespace troupe
