#include "runtime/worker/ngram_proposer.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {

NgramProposer::NgramProposer(std::int32_t min_match, std::int32_t max_match)
    : min_match_(static_cast<std::size_t>(min_match)),
      max_match_(static_cast<std::size_t>(max_match)),
      failure_(max_match_) {
  CHECK(min_match >= 1 && min_match <= max_match, min_match, max_match);
}

std::span<const TokenId> NgramProposer::propose(std::span<const TokenId> tokens,
                                                std::size_t max_drafts) {
  const std::size_t size = tokens.size();
  const auto from_end = [&](std::size_t i) { return tokens[size - 1 - i]; };
  // Read backwards, the pattern is the first max_match_ tokens, the text what comes behind it.
  // failure_[i]: how many tokens of the pattern's beginning end at its token i.
  std::fill(failure_.begin(), failure_.end(), 0);
  std::size_t longest = 0;
  std::size_t longest_begin = 0;  // in tokens
  std::size_t matched = 0;
  for (std::size_t i = 1; i < size; ++i) {
    while (matched > 0 && from_end(matched) != from_end(i)) matched = failure_[matched - 1];
    if (from_end(matched) != from_end(i)) continue;
    ++matched;
    if (i < max_match_) failure_[i] = matched;
    if (matched >= longest) {
      longest = matched;
      longest_begin = size - 1 - i;
    }
    if (matched == max_match_) matched = failure_[matched - 1];
  }
  if (longest < min_match_) return {};
  const auto behind = tokens.subspan(longest_begin + longest);
  return behind.first(std::min(behind.size(), max_drafts));
}

}  // namespace troupe
