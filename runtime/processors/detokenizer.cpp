#include "runtime/processors/detokenizer.hpp"

#include <algorithm>

#include "runtime/base/utf8.hpp"

namespace troupe {

namespace {

bool starts_code_point(char byte) noexcept {
  return !unicode::is_continuation(static_cast<unsigned char>(byte));
}

/// The number of prompt tokens before an incomplete character at its end. None if its last bytes
/// are never part of a character.
std::size_t count_complete(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                           bool skip_special_tokens) {
  constexpr std::size_t kMaxBytesInCharacter = 4;
  constexpr std::size_t kNumTailTokens = 16;
  const auto tail = prompt.last(std::min(prompt.size(), kNumTailTokens));
  for (std::size_t num_open = 0; num_open < std::min(kMaxBytesInCharacter, tail.size());
       ++num_open) {
    const auto complete = tail.first(tail.size() - num_open);
    if (!tokenizer.decode(complete, skip_special_tokens).ends_with(unicode::kReplacement)) {
      return prompt.size() - num_open;
    }
  }
  return 0;
}

}  // namespace

Detokenizer::Detokenizer(const std::shared_ptr<const Tokenizer>& tokenizer,
                         const SamplingParams& params, std::span<const TokenId> prompt)
    : params_(params) {
  if (!params.detokenize) return;
  const std::size_t num_complete = count_complete(*tokenizer, prompt, params.skip_special_tokens);
  decoder_.emplace(tokenizer, params.skip_special_tokens, prompt.first(num_complete));
  decoder_->set_spaces_between_special_tokens(params.spaces_between_special_tokens);
  // The decoder keeps the incomplete rest until the first tokens complete the character.
  for (const TokenId token : prompt.subspan(num_complete)) (void)decoder_->step(token);
  if (params.include_stop_str_in_output) return;
  for (const std::string& stop : params.stop) {
    num_held_back_ = std::max(num_held_back_, unicode::count(stop) - 1);
  }
}

void Detokenizer::skip(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) decode(token);
  num_tokens_ += tokens.size();
  num_taken_bytes_ = available(false);
}

std::optional<StopMatch> Detokenizer::update(std::span<const TokenId> tokens,
                                             bool stopped_by_token) {
  const auto min_tokens = static_cast<std::size_t>(params_.min_tokens);
  const bool skip_last = stopped_by_token && !params_.include_stop_str_in_output && !tokens.empty();
  std::size_t check_from = text_.size();
  ends_.clear();
  for (const TokenId token : tokens.first(tokens.size() - (skip_last ? 1 : 0))) {
    decode(token);
    ends_.push_back(text_.size());
    if (++num_tokens_ <= min_tokens) check_from = text_.size();
  }
  if (skip_last) ++num_tokens_;
  if (num_tokens_ <= min_tokens || text_.size() == check_from) return std::nullopt;
  return find_stop(check_from);
}

std::string Detokenizer::text(bool finished) const { return text_.substr(0, available(finished)); }

std::string Detokenizer::take_new_text(bool finished) {
  const std::size_t end = available(finished);
  if (end <= num_taken_bytes_) return {};
  std::string text = text_.substr(num_taken_bytes_, end - num_taken_bytes_);
  num_taken_bytes_ = end;
  return text;
}

void Detokenizer::decode(TokenId token) {
  if (!decoder_) return;
  if (const auto step = decoder_->step(token); step.text) text_ += *step.text;
}

std::size_t Detokenizer::available(bool finished) const noexcept {
  std::size_t end = text_.size();
  if (finished) return end;
  for (std::size_t i = 0; i < num_held_back_ && end > 0; ++i) {
    do --end;
    while (end > 0 && !starts_code_point(text_[end]));
  }
  return end;
}

std::optional<StopMatch> Detokenizer::find_stop(std::size_t check_from) {
  // A match counts if at least its last character is after check_from.
  StopMatch match;
  std::size_t match_begin = 0;
  std::size_t match_end = std::string::npos;
  for (const std::string& stop : params_.stop) {
    const std::size_t from = check_from + 1 > stop.size() ? check_from + 1 - stop.size() : 0;
    const std::size_t begin = text_.find(stop, from);
    if (begin == std::string::npos || begin + stop.size() >= match_end) continue;
    match.stop = &stop;
    match_begin = begin;
    match_end = begin + stop.size();
  }
  if (match.stop == nullptr) return std::nullopt;
  const auto completing = std::lower_bound(ends_.begin(), ends_.end(), match_end);
  match.num_tokens = static_cast<std::size_t>(completing - ends_.begin()) + 1;
  text_.resize(params_.include_stop_str_in_output ? match_end : match_begin);
  return match;
}

}  // namespace troupe
