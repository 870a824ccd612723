#include "runtime/tokenizer/incremental_decoder.hpp"

#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

/// Sufficient number of prompt tokens to prime with.
constexpr std::size_t kPrimingTokens = 32;

/// The end of a prompt that primes a stream as the whole prompt does: it starts at a character
/// boundary, and its text ends at one. The whole prompt if there is no such end.
std::span<const TokenId> priming_tail(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                                      bool skip_special_tokens) {
  if (prompt.size() <= kPrimingTokens) return prompt;
  std::size_t begin = prompt.size() - kPrimingTokens;
  while (begin > 0 && !tokenizer.starts_character(prompt[begin])) --begin;
  const auto tail = prompt.subspan(begin);
  const std::string text = tokenizer.decode(tail, skip_special_tokens);
  return text.empty() || text.ends_with(unicode::kReplacement) ? prompt : tail;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer,
                                       bool skip_special_tokens,
                                       std::span<const TokenId> prompt_ids)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  const auto tail = priming_tail(*tokenizer_, prompt_ids, skip_special_tokens);
  ids_.assign(tail.begin(), tail.end());
}

std::optional<std::string> IncrementalDecoder::advance(TokenId id, bool& is_invalid) {
  // The common case: all earlier text is final, and the token has whole characters.
  if (num_prefix_ids_ == ids_.size()) {
    if (const std::string_view text = tokenizer_->lone_text(id); !text.empty()) {
      ids_.assign(1, id);
      prefix_ = text;
      num_prefix_ids_ = 1;
      return prefix_;
    }
  }
  if (prefix_.empty() && !ids_.empty()) {
    std::string primed = tokenizer_->decode(ids_, skip_special_tokens_);
    if (!primed.ends_with(unicode::kReplacement)) {
      prefix_ = std::move(primed);
      num_prefix_ids_ = ids_.size();
    }
  }
  ids_.push_back(id);
  const std::string text = tokenizer_->decode(ids_, skip_special_tokens_);
  if (text.size() <= prefix_.size() || text.ends_with(unicode::kReplacement)) return std::nullopt;
  if (!text.starts_with(prefix_)) {
    is_invalid = true;
    return std::nullopt;
  }
  std::string piece = text.substr(prefix_.size());
  const std::size_t num_new = ids_.size() - num_prefix_ids_;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(num_prefix_ids_));
  prefix_ = tokenizer_->decode(ids_, skip_special_tokens_);
  num_prefix_ids_ = num_new;
  return piece;
}

IncrementalDecoder::Step IncrementalDecoder::step(TokenId id) {
  Step step;
  step.text = advance(id, step.reset);
  if (step.reset) {
    ids_.clear();
    prefix_.clear();
    num_prefix_ids_ = 0;
    bool is_invalid = false;
    step.text = advance(id, is_invalid);
  }
  if (!skip_special_tokens_ && !spaces_between_special_) {
    const bool is_added = tokenizer_->is_added(id);
    if (is_added && last_was_added_) step.text = tokenizer_->id_to_token(id);
    last_was_added_ = is_added;
  }
  return step;
}

}  // namespace troupe
