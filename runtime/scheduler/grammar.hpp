#pragma once
// What the Scheduler needs of a structured request's grammar.

#include <cstdint>
#include <span>

#include "messages/ids.hpp"

namespace troupe {

/// One request's grammar and how far its output has come in it. Used by the Scheduler only.
class Grammar {
 public:
  virtual ~Grammar() = default;
  /// The next token. False: it does not fit, and nothing has changed.
  virtual bool accept(TokenId token) = 0;
  /// Takes the last num_tokens accepted tokens back. Pre: there are as many.
  virtual void rollback(std::size_t num_tokens) = 0;
  /// 32-bit words of a row: a bit for each token of the vocabulary.
  [[nodiscard]] virtual std::size_t words_per_row() const = 0;
  /// Bit t % 32 of row[t / 32] says whether token t may come next. Pre: row.size() ==
  /// words_per_row().
  virtual void fill_bitmask(std::span<std::int32_t> row) const = 0;
};

}  // namespace troupe
