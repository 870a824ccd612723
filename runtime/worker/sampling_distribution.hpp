#pragma once
// The distribution a token is drawn from: temperature, min_p, top_k, top_p.

#include <cstddef>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Owns the tokens that may be drawn, in ascending order of their ids, and their weights: the
/// probabilities, not normalised. Every sum runs in double and in one fixed order, so that equal
/// logits give equal draws.
class SamplingDistribution {
 public:
  /// softmax(logits / temperature), cut by
  /// - min_p: keep p >= min_p * largest p;
  /// - top_k: keep the k largest, and what equals the smallest of them;
  /// - top_p: of what is left, drop from the least likely one up while the dropped ones (equal ones
  ///   by ascending id) sum to at most 1 - top_p; the most likely one stays.
  /// Nothing is sorted but what lies at the boundary of top_p.
  /// Pre: !params.greedy(). Errors: those of index_of_largest.
  Result<void> set(std::span<const float> logits, const SamplingParams& params);

  [[nodiscard]] std::span<const TokenId> tokens() const noexcept { return tokens_; }
  /// Parallel to tokens(): exp_differences of the logits from the largest one.
  [[nodiscard]] std::span<const float> weights() const noexcept { return weights_; }
  [[nodiscard]] double total_weight() const noexcept { return total_weight_; }
  /// The first token, by id, at which the sum of probabilities exceeds `uniform`.
  /// Pre: set() was called; 0 <= uniform < 1.
  [[nodiscard]] TokenId draw(double uniform) const noexcept;

 private:
  void keep_at_least(float smallest);
  void cut_top_p(double top_p, float largest);
  void sum_weights();

  // The three are parallel.
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;  // divided by the temperature
  std::vector<float> weights_;
  std::vector<double> block_weights_;  // sums of the weights, block by block
  double total_weight_ = 0;
  // Scratch of the cuts.
  std::vector<float> best_values_;
  std::vector<double> bucket_weights_;
  std::vector<std::size_t> boundary_;
};

}  // namespace troupe
