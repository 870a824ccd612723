#pragma once
// A grammar that is ready for a vocabulary. Requests with the same grammar share one.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"
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
      GrammarBuilder builder, std::shared_ptr<const GrammarVocabulary> vocabulary);

  /// The same grammar without what parsers have found out, for those that go on where this one is
  /// full: the latest one, or another if that is this one.
  std::shared_ptr<CompiledGrammar> successor();
  /// These states in a successor.
  std::vector<GrammarState> states_in(CompiledGrammar& successor,
                                      std::span<const GrammarState> states);
  /// This one, or the last successor.
  static std::shared_ptr<CompiledGrammar> latest(std::shared_ptr<CompiledGrammar> grammar);
  /// It takes so much of what it may that a successor has more room.
  [[nodiscard]] bool is_full() const noexcept { return num_bytes_ > max_bytes_ / 2; }

  [[nodiscard]] GrammarState start() const noexcept { return start_; }
  /// The state behind the bytes; none if they do not fit.
  std::optional<GrammarState> advance(GrammarState state, std::string_view bytes);
  /// Is what has been read a whole text of the grammar?
  bool may_end(GrammarState state);
  /// A bit for each token that fits. Pre: row.size() == vocabulary().num_words().
  void fill_bitmask(GrammarState state, std::span<std::int32_t> row);

  /// The text behind the state as far as the grammar leaves no choice, at most max_bytes of it.
  std::string forced_text(GrammarState state, std::size_t max_bytes);

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

  CompiledGrammar(std::shared_ptr<const GrammarBuilder> source, Expressions expressions,
                  ExpressionId start, ExpressionId plain_character,
                  std::shared_ptr<const GrammarVocabulary> vocabulary);

  /// Throws GrammarRefused.
  static std::shared_ptr<CompiledGrammar> compile(
      std::shared_ptr<const GrammarBuilder> source,
      std::shared_ptr<const GrammarVocabulary> vocabulary);

  /// The one byte that may follow; none if there are others, or if nothing need follow.
  std::optional<char> only_byte(GrammarState state);
  const Mask& mask(GrammarState state);
  Mask compute_mask(GrammarState state);
  /// Plain characters (those of the vocabulary's slices) that the expression surely takes.
  std::uint32_t num_plain_characters(ExpressionId e, int depth = 0);
  /// The same of an intersection.
  std::uint32_t num_common_plain_characters(ExpressionId e, int depth);
  std::uint32_t num_plain_characters_of_all(std::span<const ExpressionId> parts);
  /// Of its alternatives one that takes any number of plain characters and then still all that it
  /// takes now, as patterns without an anchor do; kNothing if there is none.
  ExpressionId search_in(ExpressionId e);
  /// Is each plain character a text of it?
  bool takes_plain(ExpressionId e);

  const std::shared_ptr<const GrammarBuilder> source_;
  /// Shared by a grammar and its successors. Those that no parser uses any more are gone: a text
  /// that fills one after the other takes the memory of one or two.
  struct Line {
    std::mutex mutex;
    std::weak_ptr<CompiledGrammar> latest;  ///< none: the first one

    std::shared_ptr<CompiledGrammar> latest_but(const CompiledGrammar* one) {
      const std::lock_guard lock(mutex);
      auto found = latest.lock();
      return found.get() != one ? found : nullptr;
    }
  };
  std::shared_ptr<Line> line_ = std::make_shared<Line>();
  std::mutex mutex_;  ///< guards all below that is not const
  Expressions expressions_;
  const GrammarState start_;
  const ExpressionId plain_character_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::size_t max_bytes_;  ///< without the source
  std::atomic<std::size_t> num_bytes_ = 0;
  std::unordered_map<GrammarState, Mask> masks_;
  std::size_t mask_bytes_ = 0;
  std::unordered_map<ExpressionId, bool> takes_plain_;  ///< each plain character
  std::vector<const ExpressionId*> walk_;               ///< tables of the states on the way down
  std::vector<ExpressionId> walk_states_;
};

/// One request's way through a grammar. A copy goes its own way. Where the grammar is full it goes
/// on in the successor.
class GrammarMatcher {
 public:
  static constexpr std::size_t kMaxRollback = 255;

  /// `stop_tokens` end the text where the grammar may end. One that stands for a text may be part
  /// of the grammar's text all the same.
  GrammarMatcher(std::shared_ptr<CompiledGrammar> grammar, std::vector<TokenId> stop_tokens);

  /// Advances by a token. False: the token is not accepted, and nothing has changed.
  bool accept(TokenId token);
  /// Reverts the last num_tokens accepted tokens. Pre: there are as many; at most kMaxRollback in a
  /// row.
  void rollback(std::size_t num_tokens);
  [[nodiscard]] std::size_t words_per_row() const;
  /// A bit for each token that is accepted next. Where a limit of the grammar is reached, no bit is
  /// set but those of stop tokens. Pre: row.size() == words_per_row().
  void fill_bitmask(std::span<std::int32_t> row);
  /// As CompiledGrammar's, behind the last token. Empty where a limit is reached.
  std::string forced_text(std::size_t max_bytes);
  [[nodiscard]] const GrammarVocabulary& vocabulary() const { return grammar_->vocabulary(); }
  /// Of the last call, if a limit of the grammar was reached.
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

  [[nodiscard]] bool may_end() const;
  /// A stop token has been accepted.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  [[nodiscard]] bool is_stop(TokenId token) const;
  [[nodiscard]] std::optional<GrammarState> state_behind(TokenId token);
  /// Calls use(grammar, state), with a successor of the grammar if it is full. False: a limit is
  /// reached all the same.
  template <class Use>
  bool with_grammar(const Use& use);
  /// Throws GrammarRefused.
  void move_to(const std::shared_ptr<CompiledGrammar>& grammar);

  /// Behind a stop token.
  static constexpr GrammarState kEnded = Expressions::kNothing;
  std::shared_ptr<CompiledGrammar> grammar_;
  std::vector<TokenId> stop_tokens_;
  std::vector<GrammarState> states_;  ///< before the last tokens and behind the last one
  std::optional<Error> failure_;
};

}  // namespace troupe
