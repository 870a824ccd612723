#pragma once
// From logits to tokens and log-probabilities.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "messages/model_runner_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/worker/sampling_distribution.hpp"
#include "runtime/worker/sampling_state.hpp"

namespace troupe {

inline constexpr TokenId kNoToken = -1;

/// Samples a token from a row of logits. The result depends on that row and on its request's state
/// alone.
///
/// In this order: what SamplingState::process_logits does; a greedy request takes the best token
/// (the lowest id of equal ones); the others draw from their SamplingDistribution, by inverting its
/// cumulative sum at philox_uniform(params.philox_key, state.position(), kTokenDraw).
///
/// Log-probabilities are those of the logits as they came, log(softmax(x)). A row of them starts
/// with the sampled token and its rank (how many values are >= its own). The k best tokens follow
/// with ranks 1 to k, equal values by ascending id, the sampled one included if it is among them:
/// k + 1 entries. kAllLogprobs asks for the whole vocabulary. Where the request lists tokens, these
/// follow instead, in its order and with their ranks.
///
/// Owns scratch memory only, which grows in the first steps and is then reused. One thread at a
/// time.
class Sampler {
 public:
  static constexpr std::uint32_t kTokenDraw = 0;  ///< draw index of a position's own token

  /// logits: [vocab_size] f32; they are overwritten. state: of the row's request; the caller
  /// appends the token to it. Appends a row to `logprobs` if the request asks for it. Errors:
  /// kInternal for NaN or +inf, kInvalidArgument where the parameters forbid every token; nothing
  /// is appended then.
  Result<TokenId> sample(std::span<float> logits, const SamplingState& state,
                         LogprobRows& logprobs);

  /// The token that sample() would take, nothing else: logits may be those of another model.
  Result<TokenId> draw(std::span<float> logits, const SamplingState& state);

  /// Appends the row of a position whose token is known: prompt log-probabilities.
  /// logits: [vocab_size]. Pre: 0 <= token < vocab_size; num_logprobs >= 0 or kAllLogprobs.
  /// Errors: those of index_of_largest; nothing is appended then.
  Result<void> append_logprobs(std::span<const float> logits, TokenId token,
                               std::int32_t num_logprobs, LogprobRows& rows);

 private:
  /// The same, of the tokens that the request lists. Pre: they are in the vocabulary.
  Result<void> append_listed(std::span<const float> logits, TokenId token,
                             std::span<const TokenId> listed, LogprobRows& rows);
  Result<TokenId> choose(std::span<const float> logits, const SamplingState& state);
  void find_best(std::span<const float> logits, std::size_t count);

  SamplingDistribution distribution_;
  std::vector<float> raw_logits_;   // the row as it came, while its logits are changed
  std::vector<float> best_values_;  // scratch of find_best
  std::vector<TokenId> best_;       // what find_best found, best first
};

}  // namespace troupe
