#include "runtime/worker/sampling_distribution.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/worker/sampling_math.hpp"

namespace troupe {

namespace {

constexpr std::size_t kBlockSize = 256;
constexpr std::size_t kNumBuckets = 1024;
constexpr float kBucketsPerUnit = 32;

/// Candidates by their distance from the largest logit; the last bucket takes all that is far off.
std::size_t bucket_of(float logit, float largest) noexcept {
  const float bucket = (largest - logit) * kBucketsPerUnit;
  return bucket < static_cast<float>(kNumBuckets - 1) ? static_cast<std::size_t>(bucket)
                                                      : kNumBuckets - 1;
}

}  // namespace

Result<void> SamplingDistribution::set(std::span<const float> logits,
                                       const SamplingParams& params) {
  const float temperature = std::max(params.temperature, kMinTemperature);
  logits_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) logits_[i] = logits[i] / temperature;
  // Behind the division, which may make a large logit infinite.
  ASSIGN_OR_RETURN(const std::size_t best, index_of_largest(logits_));
  const float largest = logits_[best];

  float smallest = std::numeric_limits<float>::lowest();
  if (params.min_p > 0) smallest = std::max(smallest, largest + std::log(params.min_p));
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    smallest = std::max(smallest,
                        kth_largest(logits_, static_cast<std::size_t>(params.top_k), best_values_));
  }
  keep_at_least(smallest);
  weights_.resize(logits_.size());
  exp_differences(logits_, largest, weights_);
  sum_weights();
  if (params.top_p < 1) cut_top_p(static_cast<double>(params.top_p), largest);
  return {};
}

void SamplingDistribution::keep_at_least(float smallest) {
  tokens_.resize(logits_.size());
  std::size_t num_kept = 0;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    tokens_[num_kept] = static_cast<TokenId>(i);
    logits_[num_kept] = logits_[i];
    num_kept += logits_[i] >= smallest;
  }
  tokens_.resize(num_kept);
  logits_.resize(num_kept);
}

void SamplingDistribution::cut_top_p(double top_p, float largest) {
  // A candidate stays if what is more likely sums to less than this. Whole buckets are taken until
  // the one in which the sum is reached; only that one is sorted.
  const double wanted = top_p * total_weight_;
  bucket_weights_.assign(kNumBuckets, 0);
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    bucket_weights_[bucket_of(logits_[i], largest)] += static_cast<double>(weights_[i]);
  }
  double taken = 0;
  std::size_t boundary_bucket = 0;
  while (boundary_bucket < kNumBuckets && taken + bucket_weights_[boundary_bucket] < wanted) {
    taken += bucket_weights_[boundary_bucket++];
  }
  if (boundary_bucket == kNumBuckets) return;  // the rounded sums fall short of a top_p near 1
  boundary_.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (bucket_of(logits_[i], largest) == boundary_bucket) boundary_.push_back(i);
  }
  const auto more_likely = [&](std::size_t left, std::size_t right) {
    return logits_[left] != logits_[right] ? logits_[left] > logits_[right] : left > right;
  };
  std::sort(boundary_.begin(), boundary_.end(), more_likely);
  std::size_t num_taken = 0;
  while (num_taken < boundary_.size() && taken < wanted) {
    taken += static_cast<double>(weights_[boundary_[num_taken++]]);
  }
  // What is less likely than the last one taken goes.
  const float last_logit = logits_[boundary_[num_taken - 1]];
  const std::size_t last_index = boundary_[num_taken - 1];
  std::size_t num_kept = 0;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (logits_[i] < last_logit || (logits_[i] == last_logit && i < last_index)) continue;
    tokens_[num_kept] = tokens_[i];
    logits_[num_kept] = logits_[i];
    weights_[num_kept++] = weights_[i];
  }
  tokens_.resize(num_kept);
  logits_.resize(num_kept);
  weights_.resize(num_kept);
  sum_weights();
}

void SamplingDistribution::sum_weights() {
  block_weights_.clear();
  total_weight_ = 0;
  for (std::size_t begin = 0; begin < weights_.size(); begin += kBlockSize) {
    const std::size_t size = std::min(kBlockSize, weights_.size() - begin);
    block_weights_.push_back(sum_of(std::span(weights_).subspan(begin, size)));
    total_weight_ += block_weights_.back();
  }
}

TokenId SamplingDistribution::draw(double uniform) const noexcept {
  const double target = uniform * total_weight_;
  double sum = 0;
  std::size_t block = 0;
  while (block + 1 < block_weights_.size() && sum + block_weights_[block] <= target) {
    sum += block_weights_[block++];
  }
  // Sums are rounded, so that the end of the block may be reached: its last token then.
  const std::size_t end = std::min((block + 1) * kBlockSize, weights_.size());
  for (std::size_t i = block * kBlockSize; i < end; ++i) {
    sum += static_cast<double>(weights_[i]);
    if (sum > target) return tokens_[i];
  }
  return tokens_[end - 1];
}

}  // namespace troupe
