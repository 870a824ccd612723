#include "runtime/worker/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/base/philox.hpp"
#include "runtime/worker/sampling_math.hpp"

namespace troupe {

Result<TokenId> Sampler::sample(std::span<float> logits, const SamplingState& state,
                                LogprobRows& logprobs) {
  const SamplingParams& params = state.params();
  std::span<const float> raw_logits = logits;
  if (state.changes_logits()) {
    if (params.logprobs) {
      raw_logits_.assign(logits.begin(), logits.end());
      raw_logits = raw_logits_;
    }
    state.process_logits(logits);
  }
  ASSIGN_OR_RETURN(const TokenId token, choose(logits, state));
  if (params.logprobs) {
    RETURN_IF_ERROR(params.logprob_token_ids.empty()
                        ? append_logprobs(raw_logits, token, *params.logprobs, logprobs)
                        : append_listed(raw_logits, token, params.logprob_token_ids, logprobs));
  }
  return token;
}

Result<TokenId> Sampler::draw(std::span<float> logits, const SamplingState& state) {
  if (state.changes_logits()) state.process_logits(logits);
  return choose(logits, state);
}

Result<TokenId> Sampler::choose(std::span<const float> logits, const SamplingState& state) {
  const SamplingParams& params = state.params();
  if (params.greedy()) {
    ASSIGN_OR_RETURN(const std::size_t best, index_of_largest(logits));
    return static_cast<TokenId>(best);
  }
  RETURN_IF_ERROR(distribution_.set(logits, params));
  return distribution_.draw(philox_uniform(params.philox_key, state.position(), kTokenDraw));
}

namespace {

/// Appends the entries of one row.
class RowWriter {
 public:
  static Result<RowWriter> begin(std::span<const float> logits, LogprobRows& rows) {
    ASSIGN_OR_RETURN(const std::size_t largest_index, index_of_largest(logits));
    const float largest = logits[largest_index];
    const double log_sum = static_cast<double>(largest) + std::log(sum_of_exp(logits, largest));
    return RowWriter(logits, log_sum, rows);
  }
  void append(TokenId id, std::int32_t rank) {
    const double logit = static_cast<double>(logits_[static_cast<std::size_t>(id)]);
    rows_->token_ids.push_back(id);
    rows_->logprobs.push_back(static_cast<float>(logit - log_sum_));
    rows_->ranks.push_back(rank);
  }

 private:
  RowWriter(std::span<const float> logits, double log_sum, LogprobRows& rows)
      : logits_(logits), log_sum_(log_sum), rows_(&rows) {}

  std::span<const float> logits_;
  double log_sum_;
  LogprobRows* rows_;
};

}  // namespace

Result<void> Sampler::append_listed(std::span<const float> logits, TokenId token,
                                    std::span<const TokenId> listed, LogprobRows& rows) {
  CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size(), token, logits.size());
  ASSIGN_OR_RETURN(RowWriter row, RowWriter::begin(logits, rows));
  std::vector<TokenId> ids = {token};
  ids.insert(ids.end(), listed.begin(), listed.end());
  // How many logits are at least each of theirs, in one pass over all.
  std::vector<float> ascending;
  for (const TokenId id : ids) ascending.push_back(logits[static_cast<std::size_t>(id)]);
  std::ranges::sort(ascending);
  std::vector<std::int32_t> num_reaching(ascending.size() + 1);
  for (const float logit : logits)
    ++num_reaching[static_cast<std::size_t>(std::ranges::upper_bound(ascending, logit) -
                                            ascending.begin())];
  for (std::size_t i = ascending.size(); i > 0; --i) num_reaching[i - 1] += num_reaching[i];
  rows.row_sizes.push_back(static_cast<std::int32_t>(ids.size()));
  for (const TokenId id : ids) {
    const auto own = std::ranges::lower_bound(ascending, logits[static_cast<std::size_t>(id)]) -
                     ascending.begin();
    row.append(id, num_reaching[static_cast<std::size_t>(own) + 1]);
  }
  return {};
}

Result<void> Sampler::append_logprobs(std::span<const float> logits, TokenId token,
                                      std::int32_t num_logprobs, LogprobRows& rows) {
  CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size(), token, logits.size());
  ASSIGN_OR_RETURN(RowWriter row, RowWriter::begin(logits, rows));
  const float own = logits[static_cast<std::size_t>(token)];
  std::int32_t rank = 0;
  for (const float logit : logits) rank += logit >= own;

  const std::size_t count = num_logprobs == kAllLogprobs
                                ? logits.size()
                                : std::min(static_cast<std::size_t>(num_logprobs), logits.size());
  find_best(logits, count);
  rows.row_sizes.push_back(static_cast<std::int32_t>(count + 1));
  row.append(token, rank);
  for (std::size_t i = 0; i < count; ++i) row.append(best_[i], static_cast<std::int32_t>(i + 1));
  return {};
}

void Sampler::find_best(std::span<const float> logits, std::size_t count) {
  best_.clear();
  if (count == 0) return;
  const float smallest = kth_largest(logits, count, best_values_);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= smallest) best_.push_back(static_cast<TokenId>(i));
  }
  std::sort(best_.begin(), best_.end(), [&](TokenId left, TokenId right) {
    const float left_logit = logits[static_cast<std::size_t>(left)];
    const float right_logit = logits[static_cast<std::size_t>(right)];
    return left_logit != right_logit ? left_logit > right_logit : left < right;
  });
  best_.resize(count);
}

}  // namespace troupe
