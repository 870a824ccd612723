#pragma once
// What the sampler knows of one request.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"

namespace troupe {

/// Owns a request's sampling parameters and, of its tokens, just what they need: counts where there
/// are penalties, the last few outputs where there are bad words. A token costs O(1).
///
/// The model runner keeps one per request, calls append() for every token that the request was
/// given, and builds a new one when the request returns after a preemption.
class SamplingState {
 public:
  /// `token_ids`: every known token; the first `num_prompt_tokens` are the prompt.
  SamplingState(const SamplingParams& params, std::span<const TokenId> token_ids,
                std::size_t num_prompt_tokens);

  /// The request's next output token.
  void append(TokenId token);

  [[nodiscard]] const SamplingParams& params() const noexcept { return params_; }
  /// Index, in prompt and outputs together, of the token that is sampled next.
  [[nodiscard]] std::uint64_t position() const noexcept { return num_tokens_; }

  /// True if logits must pass through process_logits before the best or a random one is taken.
  [[nodiscard]] bool changes_logits() const noexcept { return changes_logits_; }
  /// Everything that comes before the temperature, in this order: allowed ids, bad words, minimum
  /// tokens, logit bias, repetition, frequency and presence penalty. Forbidden tokens become -inf.
  /// logits: [vocab_size]. Ids outside the vocabulary are ignored.
  void process_logits(std::span<float> logits) const;

 private:
  struct TokenUse {
    std::int32_t num_outputs = 0;  // 0: only in the prompt
  };

  void keep_only_allowed(std::span<float> logits) const;
  void forbid_bad_words(std::span<float> logits) const;
  void apply_penalties(std::span<float> logits) const;

  SamplingParams params_;
  SharedVector<TokenId> allowed_token_ids_;     // sorted
  std::unordered_map<TokenId, TokenUse> uses_;  // empty without penalties
  std::vector<TokenId> recent_outputs_;         // at least the last max_recent_, oldest first
  std::size_t max_recent_ = 0;                  // what the longest bad word looks back
  std::uint64_t num_tokens_ = 0;
  std::int32_t num_outputs_ = 0;
  bool has_penalties_ = false;
  bool changes_logits_ = false;
};

}  // namespace troupe
