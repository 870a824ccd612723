#pragma once
// Drafts for speculative decoding from what this request and earlier ones have said: suffix
// decoding (arXiv 2411.04975), vLLM's method "suffix".

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"

namespace troupe {

/// Tokens, and where each pair of them stands: what a suffix tree is asked for, the occurrences of
/// the end of a text, are those of its last pair whose tokens before agree.
class TokenHistory {
 public:
  void append(TokenId token);
  [[nodiscard]] std::span<const TokenId> tokens() const noexcept { return tokens_; }

  /// An earlier place of the end of a text.
  struct Occurrence {
    std::size_t next = 0;    ///< index of the token behind it
    std::size_t length = 0;  ///< tokens before that which agree
  };
  /// The latest ones of the end of `text`, at least two tokens long and at most `max_length`, with
  /// a token behind them.
  void find(std::span<const TokenId> text, std::size_t max_length,
            std::vector<Occurrence>& found) const;

 private:
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> before_;  // for each: where its pair with the token before stood last
  std::unordered_map<std::uint64_t, std::int32_t>
      last_;  // of a pair: the index of its second token
};

/// Owns the history of each live request, and of the answers of finished ones. One thread at a
/// time.
class SuffixProposer {
 public:
  struct Options {
    std::int32_t max_depth = 24;               ///< tokens of a match
    std::int32_t max_cached_requests = 10000;  ///< whose answers are kept
    double max_spec_factor = 1;                ///< drafts for each token of a match
    double min_token_prob = 0.1;               ///< that all drafts so far are accepted
  };
  explicit SuffixProposer(const Options& options) : options_(options) {}

  /// At most max_drafts tokens that followed earlier places of the text's end. Where these differ,
  /// the most frequent goes first, as long as its share is at least min_token_prob; of matches of
  /// several lengths, here or in other answers, the one whose drafts are most likely in all.
  /// `tokens`: prompt and answer, longer than at the last call.
  [[nodiscard]] std::vector<TokenId> propose(RequestId id, std::span<const TokenId> tokens,
                                             std::size_t num_prompt_tokens, std::size_t max_drafts);
  /// The request has ended: its answer serves others.
  void finish(RequestId id);

 private:
  struct Drafts {
    std::vector<TokenId> tokens;
    double score = 0;  ///< expected number of accepted drafts
  };
  struct Live {
    TokenHistory history;
    std::size_t num_prompt_tokens = 0;
  };
  void search(const TokenHistory& history, std::span<const TokenId> text, std::size_t max_drafts,
              Drafts& best);
  [[nodiscard]] Drafts follow(const TokenHistory& history, std::size_t length,
                              std::size_t max_drafts);

  Options options_;
  std::unordered_map<std::uint64_t, Live> live_;  // by request
  /// Answers, with kNoToken behind each. When `recent_` is full it takes the place of `older_`.
  TokenHistory recent_;
  TokenHistory older_;
  std::int32_t num_recent_ = 0;
  std::vector<TokenHistory::Occurrence> found_;
  std::vector<std::size_t> places_;
};

}  // namespace troupe
