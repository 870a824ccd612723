#pragma once
// Drafts for speculative decoding from what the request has said already (prompt lookup).

#include <cstdint>
#include <span>
#include <vector>

#include "messages/ids.hpp"

namespace troupe {

/// Looks for the end of a text in the text itself. Owns scratch memory only. One thread at a time.
class NgramProposer {
 public:
  /// Drafts follow a match of min_match to max_match tokens. Pre: 1 <= min_match <= max_match.
  NgramProposer(std::int32_t min_match, std::int32_t max_match);

  /// Of the longest match of the last tokens earlier in `tokens`, and of equally long ones the
  /// earliest: at most max_drafts of the tokens behind it. Empty: there is no match. Time grows
  /// with tokens.size() (Knuth, Morris and Pratt's failure function, from the end). The result is a
  /// part of `tokens`.
  [[nodiscard]] std::span<const TokenId> propose(std::span<const TokenId> tokens,
                                                 std::size_t max_drafts);

 private:
  std::size_t min_match_;
  std::size_t max_match_;
  std::vector<std::size_t> failure_;
};

}  // namespace troupe
