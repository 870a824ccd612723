#include "runtime/worker/sampling_state.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/check.hpp"

namespace troupe {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> logits, TokenId token) {
  if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) {
    logits[static_cast<std::size_t>(token)] = kForbidden;
  }
}

}  // namespace

SamplingState::SamplingState(const SamplingParams& params, std::span<const TokenId> token_ids,
                             std::size_t num_prompt_tokens)
    : params_(params),
      allowed_token_ids_(params.allowed_token_ids),
      num_tokens_(num_prompt_tokens) {
  CHECK(num_prompt_tokens <= token_ids.size(), num_prompt_tokens, token_ids.size());
  if (!std::is_sorted(allowed_token_ids_.begin(), allowed_token_ids_.end())) {
    std::vector<TokenId>& ids = allowed_token_ids_.edit();
    std::sort(ids.begin(), ids.end());
  }
  has_penalties_ = params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
                   params.presence_penalty != 0;
  for (const auto& word : params.bad_words_token_ids) {
    if (!word.empty()) max_recent_ = std::max(max_recent_, word.size() - 1);
  }
  changes_logits_ = has_penalties_ || !allowed_token_ids_.empty() || params.min_tokens > 0 ||
                    !params.logit_bias.empty() || !params.bad_words_token_ids.empty();
  if (has_penalties_ && params.repetition_penalty != 1) {
    for (const TokenId token : token_ids.first(num_prompt_tokens)) uses_.try_emplace(token);
  }
  for (const TokenId token : token_ids.subspan(num_prompt_tokens)) append(token);
}

void SamplingState::append(TokenId token) {
  ++num_tokens_;
  ++num_outputs_;
  if (has_penalties_) ++uses_[token].num_outputs;
  if (max_recent_ == 0) return;
  if (recent_outputs_.size() == 2 * max_recent_) {
    recent_outputs_.erase(recent_outputs_.begin(),
                          recent_outputs_.begin() + static_cast<std::ptrdiff_t>(max_recent_));
  }
  recent_outputs_.push_back(token);
}

void SamplingState::process_logits(std::span<float> logits) const {
  if (!allowed_token_ids_.empty()) keep_only_allowed(logits);
  forbid_bad_words(logits);
  if (num_outputs_ < params_.min_tokens) {
    for (const TokenId token : params_.all_stop_token_ids) forbid(logits, token);
  }
  for (const auto& [token, bias] : params_.logit_bias) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) {
      logits[static_cast<std::size_t>(token)] += bias;
    }
  }
  if (has_penalties_) apply_penalties(logits);
}

void SamplingState::keep_only_allowed(std::span<float> logits) const {
  std::size_t next = 0;
  for (const TokenId token : allowed_token_ids_) {
    if (token < 0) continue;
    const std::size_t allowed = std::min(static_cast<std::size_t>(token), logits.size());
    while (next < allowed) logits[next++] = kForbidden;
    next = std::max(next, allowed + 1);
  }
  while (next < logits.size()) logits[next++] = kForbidden;
}

void SamplingState::forbid_bad_words(std::span<float> logits) const {
  // The last token of a word is forbidden where the outputs end with all that comes before it.
  for (const std::vector<TokenId>& word : params_.bad_words_token_ids) {
    if (word.empty() || word.size() - 1 > recent_outputs_.size()) continue;
    if (std::equal(word.begin(), word.end() - 1,
                   recent_outputs_.end() - static_cast<std::ptrdiff_t>(word.size() - 1))) {
      forbid(logits, word.back());
    }
  }
}

void SamplingState::apply_penalties(std::span<float> logits) const {
  for (const auto& [token, use] : uses_) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (use.num_outputs == 0) continue;
    logit -= params_.frequency_penalty * static_cast<float>(use.num_outputs);
    logit -= params_.presence_penalty;
  }
}

}  // namespace troupe
