#pragma once
// A request's grammar as the Scheduler sees it.

#include <memory>
#include <vector>

#include "runtime/scheduler/grammar.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"

namespace troupe {

class Tokenizer;

/// Notes the request's tokens. Its maskers, on another thread, give them to the matcher that they
/// share: the Scheduler never waits for what a grammar takes.
class RequestGrammar final : public Grammar {
 public:
  /// With a tokenizer, text that the grammar leaves no choice of has the tokens that the tokenizer
  /// gives it, and is proposed; without, any tokens, and nothing is proposed.
  explicit RequestGrammar(GrammarMatcher matcher,
                          std::shared_ptr<const Tokenizer> tokenizer = nullptr);

  /// True; whether it is accepted, the next masker finds out.
  bool accept(TokenId token) override;
  void rollback(std::size_t num_tokens) override;
  [[nodiscard]] std::size_t words_per_row() const override { return words_per_row_; }
  std::unique_ptr<GrammarMasker> masker() override;

 private:
  struct Shared;
  class Masker;
  std::shared_ptr<Shared> shared_;
  std::size_t words_per_row_;
  std::vector<TokenId> tokens_;  ///< since the last masker
};

}  // namespace troupe
