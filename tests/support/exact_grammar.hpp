#pragma once
// A grammar that knows at once whether it accepts a token.

#include <memory>
#include <utility>

#include "runtime/scheduler/grammar.hpp"

namespace troupe {

/// `Masker` is a GrammarMasker that can be copied, with words_per_row().
template <class Masker>
class ExactGrammar final : public Grammar {
 public:
  explicit ExactGrammar(Masker masker) : masker_(std::move(masker)) {}
  bool accept(TokenId token) override { return masker_.accept(token); }
  void rollback(std::size_t num_tokens) override { masker_.rollback(num_tokens); }
  [[nodiscard]] std::size_t words_per_row() const override { return masker_.words_per_row(); }
  std::unique_ptr<GrammarMasker> masker() override { return std::make_unique<Masker>(masker_); }

 private:
  Masker masker_;
};

template <class Masker>
[[nodiscard]] std::unique_ptr<Grammar> exact_grammar(Masker masker) {
  return std::make_unique<ExactGrammar<Masker>>(std::move(masker));
}

}  // namespace troupe
