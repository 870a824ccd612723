#pragma once
// The Scheduler's interfaces to structured output: the compiler of grammars, and a request's
// grammar.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// One request's grammar and its matcher state. Used by the Scheduler only, which fills the bitmask
/// of a step while the workers run the model.
class Grammar {
 public:
  virtual ~Grammar() = default;
  /// Advances by a token. False: the token is not accepted, and nothing has changed.
  virtual bool accept(TokenId token) = 0;
  /// Reverts the last num_tokens accepted tokens. Pre: there are as many.
  virtual void rollback(std::size_t num_tokens) = 0;
  /// 32-bit words per row: one bit per token of the vocabulary.
  [[nodiscard]] virtual std::size_t words_per_row() const = 0;
  /// Bit t % 32 of row[t / 32] tells whether token t is allowed next. Pre: row.size() ==
  /// words_per_row().
  virtual void fill_bitmask(std::span<std::int32_t> row) const = 0;
};

/// Makes the grammars of structured requests. The Scheduler's, which calls compile() on its own
/// thread: what takes time is done on others, and other requests run meanwhile.
class GrammarCompiler {
 public:
  /// The grammar at its beginning, not null, or why there is none, which ends the request.
  using Done = std::function<void(Result<std::unique_ptr<Grammar>>)>;

  virtual ~GrammarCompiler() = default;
  /// Calls `done` once, now or later, on any thread, unless it is destroyed before. Does not block.
  /// The same parameters give the same grammar: an engine that takes a request over makes it anew,
  /// and gives it the tokens that the request has. Pre: params.structured_outputs.
  virtual void compile(const SamplingParams& params, Done done) = 0;
};

}  // namespace troupe
