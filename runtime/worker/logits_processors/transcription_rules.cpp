// The rules of Whisper's decoding (arXiv 2212.04356, 4.5), as transformers'
// WhisperTimeStampLogitsProcessor and SuppressTokens processors apply them.

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

constexpr float kSuppressedLogit = -std::numeric_limits<float>::infinity();

/// A transcript is made of segments: a timestamp, text, a timestamp. Timestamps do not decrease,
/// and a segment has some length.
class TranscriptionTokens final : public LogitsProcessor {
 public:
  explicit TranscriptionTokens(TranscriptionRules rules)
      : rules_(std::make_shared<const TranscriptionRules>(std::move(rules))) {}
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<TranscriptionTokens>(*this);
  }

  void append(TokenId token) override {
    ++num_tokens_;
    before_last_is_timestamp_ = num_tokens_ < 2 || last_is_timestamp_;
    last_is_timestamp_ = rules_->no_timestamps && token > *rules_->no_timestamps;
    if (last_is_timestamp_) last_timestamp_ = token;
  }

  void apply(std::span<float> logits) const override {
    if (num_tokens_ == 0)
      for (const TokenId token : rules_->suppressed_first) forbid(logits, token);
    for (const TokenId token : rules_->suppressed) forbid(logits, token);
    if (!rules_->no_timestamps) return;
    forbid(logits, *rules_->no_timestamps);
    const auto size = static_cast<TokenId>(logits.size());
    const TokenId begin = *rules_->no_timestamps + 1;
    if (num_tokens_ == 0) {
      forbid_between(logits, 0, begin);
      if (rules_->max_initial_timestamp)
        forbid_between(logits, begin + *rules_->max_initial_timestamp + 1, size);
    } else if (last_is_timestamp_ && before_last_is_timestamp_) {
      forbid_between(logits, begin, size);
    } else if (last_is_timestamp_) {
      forbid_between(logits, 0,
                     rules_->end);  // a segment ends: the next begins, or it was the last
      forbid_between(logits, begin, last_timestamp_);
    } else if (last_timestamp_ >= begin) {
      forbid_between(logits, begin, last_timestamp_ + 1);
    }
    if (timestamp_is_likeliest(logits, begin)) forbid_between(logits, 0, begin);
  }

 private:
  static void forbid_between(std::span<float> logits, TokenId begin, TokenId end) {
    const auto size = static_cast<TokenId>(logits.size());
    for (TokenId token = std::max(begin, 0); token < std::min(end, size); ++token)
      logits[static_cast<std::size_t>(token)] = kSuppressedLogit;
  }

  /// All timestamps together are likelier than the likeliest text token.
  static bool timestamp_is_likeliest(std::span<const float> logits, TokenId begin) {
    if (begin <= 0 || static_cast<std::size_t>(begin) >= logits.size()) return false;
    const auto texts = logits.first(static_cast<std::size_t>(begin));
    const auto timestamps = logits.subspan(texts.size());
    const double text = *std::ranges::max_element(texts);
    const double largest = *std::ranges::max_element(timestamps);
    if (std::isinf(largest)) return false;
    double sum = 0;
    for (const float logit : timestamps) sum += std::exp(static_cast<double>(logit) - largest);
    return largest + std::log(sum) > text;
  }

  std::shared_ptr<const TranscriptionRules> rules_;  // of this request
  std::int64_t num_tokens_ = 0;
  TokenId last_timestamp_ = -1;  // none
  bool last_is_timestamp_ = false;
  bool before_last_is_timestamp_ = true;
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_transcription_rules(const LogitsProcessorInputs& inputs) {
  if (inputs.transcription == nullptr) return nullptr;
  TranscriptionRules rules = *inputs.transcription;
  if (!inputs.prompt.empty() && inputs.prompt.back() == rules.no_timestamps)
    rules.no_timestamps.reset();
  return std::make_unique<TranscriptionTokens>(std::move(rules));
}

}  // namespace troupe
