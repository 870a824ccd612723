#pragma once
// A grammar that is ready for a vocabulary. Requests with the same grammar share one.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/scheduler/grammar.hpp"
#include "runtime/structured_output/expressions.hpp"
#include "runtime/structured_output/grammar_builder.hpp"
#include "runtime/structured_output/grammar_vocabulary.hpp"

namespace troupe {

/// A parser's state before a token.
using GrammarState = ExpressionId;

/// Made off the Scheduler's thread. The parser of each request is a GrammarMatcher. What parsers
/// find out (derivatives, masks) is kept here for all of them, within the limits.
///
/// Every method may be called from any thread. Where a limit ends one, it throws GrammarRefused.
class CompiledGrammar {
 public:
  /// Errors: kInvalidArgument: over a limit, or no text fits the grammar.
  static Result<std::shared_ptr<CompiledGrammar>> compile(
      const GrammarBuilder& builder, std::shared_ptr<const GrammarVocabulary> vocabulary);

  [[nodiscard]] GrammarState start() const noexcept { return start_; }
  /// The state behind the bytes; none if they do not fit.
  std::optional<GrammarState> advance(GrammarState state, std::string_view bytes);
  /// Is what has been read a whole text of the grammar?
  bool may_end(GrammarState state);
  /// A bit for each token that fits. Pre: row.size() == vocabulary().num_words().
  void fill_bitmask(GrammarState state, std::span<std::int32_t> row);

  [[nodiscard]] const GrammarVocabulary& vocabulary() const noexcept { return *vocabulary_; }
  /// Memory that it takes, without the vocabulary. Waits for nothing.
  [[nodiscard]] std::size_t num_bytes() const noexcept { return num_bytes_; }

 private:
  /// For the time of a call that may change what is kept.
  class Access;
  /// All tokens of a slice, if there is one, and these; where many fit, all are in `words`.
  struct Mask {
    const GrammarVocabulary::Slice* slice = nullptr;
    std::vector<TokenId> tokens;
    std::vector<std::uint32_t> words;
  };

  CompiledGrammar(Expressions expressions, ExpressionId start, ExpressionId plain_character,
                  std::shared_ptr<const GrammarVocabulary> vocabulary, std::size_t max_mask_bytes);

  const Mask& mask(GrammarState state);
  Mask compute_mask(GrammarState state);
  /// Plain characters (those of the vocabulary's slices) that the expression surely takes.
  std::uint32_t num_plain_characters(ExpressionId e, int depth = 0);

  std::mutex mutex_;  ///< guards all below that is not const
  Expressions expressions_;
  const GrammarState start_;
  const ExpressionId plain_character_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::size_t max_mask_bytes_;
  std::atomic<std::size_t> num_bytes_ = 0;
  std::unordered_map<GrammarState, Mask> masks_;
  std::size_t mask_bytes_ = 0;
  std::unordered_map<ExpressionId, bool> takes_plain_;  ///< each plain character
  std::vector<const ExpressionId*> walk_;               ///< tables of the states on the way down
  std::vector<ExpressionId> walk_states_;
};

/// One request's way through a grammar. A copy goes its own way.
class GrammarMatcher : public Grammar {
 public:
  /// `stop_tokens` end the text where the grammar may end. One that stands for a text may be part
  /// of the grammar's text all the same.
  GrammarMatcher(std::shared_ptr<CompiledGrammar> grammar, std::vector<TokenId> stop_tokens);

  bool accept(TokenId token) override;
  void rollback(std::size_t num_tokens) override;
  [[nodiscard]] std::size_t words_per_row() const override;
  /// Where a limit of the grammar is reached, no bit is set but those of stop tokens.
  void fill_bitmask(std::span<std::int32_t> row) const override;

  [[nodiscard]] bool may_end() const;
  /// A stop token has been accepted.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  [[nodiscard]] bool is_stop(TokenId token) const;
  [[nodiscard]] std::optional<GrammarState> state_behind(TokenId token) const;

  static constexpr GrammarState kEnded = Expressions::kNothing;
  std::shared_ptr<CompiledGrammar> grammar_;
  std::vector<TokenId> stop_tokens_;
  std::vector<GrammarState> states_;  ///< before each token and behind the last one
};

}  // namespace troupe
