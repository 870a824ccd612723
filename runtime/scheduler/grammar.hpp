#pragma once
// The Scheduler's interfaces to structured output: a request's grammar, its masks, and the compiler
// of both.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// A request's grammar after the tokens that it had when this was created. Fills the masks of one
/// step, on any thread; those of a request do so one after another, in their order.
class GrammarMasker {
 public:
  virtual ~GrammarMasker() = default;
  /// Advances by a token. False: the token is not accepted, and nothing has changed.
  virtual bool accept(TokenId token) = 0;
  /// Reverts the last num_tokens accepted tokens. Pre: there are as many.
  virtual void rollback(std::size_t num_tokens) = 0;
  /// Bit t % 32 of row[t / 32] tells whether token t is allowed next. Pre: row.size() ==
  /// words_per_row().
  virtual void fill_bitmask(std::span<std::int32_t> row) = 0;
  /// Pre: the last row had no bit set. The reason, or none: the text is complete.
  [[nodiscard]] virtual std::optional<Error> why_nothing_fits() const = 0;
  /// The next tokens where the grammar leaves little choice: they need not come true. At most
  /// max_tokens of them.
  virtual std::vector<TokenId> likely_tokens(std::size_t max_tokens) {
    static_cast<void>(max_tokens);
    return {};
  }
};

/// One request's grammar. Used on the Scheduler's thread, which it never blocks.
class Grammar {
 public:
  virtual ~Grammar() = default;
  /// Advances by a token. False: the token is not accepted, and nothing has changed. A grammar may
  /// leave that to its maskers, and be true for each token.
  virtual bool accept(TokenId token) = 0;
  /// Reverts the last num_tokens accepted tokens. Pre: they were accepted since the last masker.
  virtual void rollback(std::size_t num_tokens) = 0;
  /// 32-bit words per row: one bit per token of the vocabulary.
  [[nodiscard]] virtual std::size_t words_per_row() const = 0;
  /// For the masks after the tokens so far.
  virtual std::unique_ptr<GrammarMasker> masker() = 0;
};

/// The structured requests of a step that is open.
struct GrammarStep {
  struct Request {
    RequestId id{};
    std::uint64_t sequence = 0;
    std::size_t words_per_row = 0;
    std::unique_ptr<GrammarMasker> masker;
    std::vector<TokenId> drafts;
    std::size_t num_tokens = 0;           ///< before the drafts
    std::size_t max_proposed_tokens = 0;  ///< 0: none are wanted
  };
  std::uint64_t step = 0;
  std::vector<Request> requests;
};

/// Nothing can follow a request's text with `num_tokens` of a step's drafts.
struct GrammarEnd {
  RequestId id{};
  std::uint64_t sequence = 0;
  std::uint64_t step = 0;
  std::size_t num_tokens = 0;
  std::optional<Error> error;  ///< none: the text is complete
};

/// Likely tokens of a request from the one behind its first num_tokens tokens on.
struct GrammarProposal {
  RequestId id{};
  std::uint64_t sequence = 0;
  std::size_t num_tokens = 0;
  std::vector<TokenId> tokens;
};

struct GrammarMasks {
  GrammarOutput output;  ///< for the workers; its incarnation is the Scheduler's to set
  /// Their rows from num_tokens on allow nothing.
  std::vector<GrammarEnd> ended;
  std::vector<GrammarProposal> proposals;
};
/// Drafts from the first one that the grammar rejects are not accepted; after a placeholder (-1)
/// every token is allowed.
[[nodiscard]] GrammarMasks fill_masks(GrammarStep step);

/// Makes the grammars and masks of structured requests on threads of its own, while other requests
/// run and the workers compute. The Scheduler calls it on its thread.
class GrammarCompiler {
 public:
  /// The grammar at its beginning, not null, or why there is none, which ends the request.
  using Done = std::function<void(Result<std::unique_ptr<Grammar>>)>;
  using Filled = std::function<void(GrammarMasks)>;

  virtual ~GrammarCompiler() = default;
  /// Calls `done` once, now or later, on any thread, unless it is destroyed before. Does not block.
  /// The same parameters give the same grammar: an engine that takes over a request compiles it
  /// again and advances it by the request's tokens. Pre: params.structured_outputs.
  virtual void compile(const SamplingParams& params, Done done) = 0;
  /// fill_masks(); steps are filled in the order of the calls. `filled` as `done` above.
  virtual void fill(GrammarStep step, Filled filled) = 0;
};

}  // namespace troupe
