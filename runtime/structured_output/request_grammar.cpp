#include "runtime/structured_output/request_grammar.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {

/// Used by one masker after another.
struct RequestGrammar::Shared {
  GrammarMatcher matcher;
  std::optional<TokenId> refused;  ///< a token of the request that was not accepted
};

class RequestGrammar::Masker final : public GrammarMasker {
 public:
  Masker(std::shared_ptr<Shared> shared, std::vector<TokenId> tokens)
      : shared_(std::move(shared)), tokens_(std::move(tokens)) {}

  bool accept(TokenId token) override {
    take_tokens();
    return !shared_->refused && shared_->matcher.accept(token);
  }
  void rollback(std::size_t num_tokens) override {
    if (num_tokens > 0) shared_->matcher.rollback(num_tokens);
  }
  void fill_bitmask(std::span<std::int32_t> row) override {
    take_tokens();
    if (shared_->refused) {
      std::ranges::fill(row, 0);
    } else {
      shared_->matcher.fill_bitmask(row);
    }
  }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override {
    if (shared_->matcher.failure()) return shared_->matcher.failure();
    if (shared_->refused) {
      return Error{ErrorCode::kInternal,
                   "token " + std::to_string(*shared_->refused) +
                       " was generated, which the grammar does not allow",
                   {}};
    }
    if (shared_->matcher.may_end()) return std::nullopt;
    return invalid_argument(
        "no token of the model's vocabulary continues the text as its grammar asks");
  }

 private:
  void take_tokens() {
    for (const TokenId token : std::exchange(tokens_, {}))
      if (!shared_->refused && !shared_->matcher.accept(token)) shared_->refused = token;
  }

  std::shared_ptr<Shared> shared_;
  std::vector<TokenId> tokens_;  ///< that the matcher has not got yet
};

RequestGrammar::RequestGrammar(GrammarMatcher matcher)
    : shared_(std::make_shared<Shared>(Shared{std::move(matcher), std::nullopt})),
      words_per_row_(shared_->matcher.words_per_row()) {}

bool RequestGrammar::accept(TokenId token) {
  tokens_.push_back(token);
  return true;
}

void RequestGrammar::rollback(std::size_t num_tokens) {
  CHECK(num_tokens <= tokens_.size(), num_tokens, tokens_.size());
  tokens_.resize(tokens_.size() - num_tokens);
}

std::unique_ptr<GrammarMasker> RequestGrammar::masker() {
  return std::make_unique<Masker>(shared_, std::exchange(tokens_, {}));
}

}  // namespace troupe
