// Ends the reasoning when it has had so many tokens: those of its end become the only ones.

#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

/// What is in reasoning is a function of the tokens alone, and what is forced follows from it, so
/// that a request that is resumed, or whose drafts are taken back, goes on in the same way.
class ThinkingTokens final : public LogitsProcessor {
 public:
  ThinkingTokens(const ThinkingBudget& budget, std::span<const TokenId> prompt) : budget_(budget) {
    max_recent_ = std::max(budget_.begin_token_ids.size(), budget_.forced_token_ids.size());
    for (const std::vector<TokenId>& end : budget_.end_token_ids)
      max_recent_ = std::max(max_recent_, end.size());
    for (const TokenId token : prompt) {
      const bool was_inside = is_inside_;
      append(token);
      if (!was_inside) num_tokens_ = 0;  // sections of earlier answers do not count
    }
    if (is_inside_) return;
    recent_.clear();
    is_inside_ = budget_.starts_inside;
    num_tokens_ = 0;
  }
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<ThinkingTokens>(*this);
  }

  void append(TokenId token) override {
    if (recent_.size() == 2 * max_recent_)
      recent_.erase(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(max_recent_));
    recent_.push_back(token);
    if (ends_with(budget_.begin_token_ids)) {
      // A model may write the marker of a section that has begun without it.
      if (is_inside_) num_tokens_ -= std::ssize(budget_.begin_token_ids) - 1;
      is_inside_ = true;
      num_tokens_ = std::max<std::ptrdiff_t>(num_tokens_, 0);
    } else if (is_inside_) {
      ++num_tokens_;
      is_inside_ = std::ranges::none_of(
          budget_.end_token_ids, [&](const std::vector<TokenId>& end) { return ends_with(end); });
    }
  }

  void apply(std::span<float> logits) const override {
    if (!is_inside_ || num_tokens_ < budget_.num_tokens) return;
    const float* const next = logit_of(logits, next_forced());
    // A grammar may want the rest of a character first.
    if (next == nullptr || *next == -std::numeric_limits<float>::infinity()) return;
    const float kept = *next;
    const auto at = next - logits.data();
    std::ranges::fill(logits, -std::numeric_limits<float>::infinity());
    logits[static_cast<std::size_t>(at)] = kept;
  }

 private:
  [[nodiscard]] bool ends_with(std::span<const TokenId> marker) const {
    return !marker.empty() && marker.size() <= recent_.size() &&
           std::equal(marker.begin(), marker.end(),
                      recent_.end() - static_cast<std::ptrdiff_t>(marker.size()));
  }

  /// Behind as much of the end as has been written.
  [[nodiscard]] TokenId next_forced() const {
    const std::span<const TokenId> end = budget_.forced_token_ids;
    std::size_t num_written = end.size() - 1;
    while (num_written > 0 && !ends_with(end.first(num_written))) --num_written;
    return end[num_written];
  }

  ThinkingBudget budget_;
  std::vector<TokenId> recent_;  // at least the last max_recent_, oldest first
  std::size_t max_recent_ = 0;   // the longest marker
  bool is_inside_ = false;
  std::ptrdiff_t num_tokens_ = 0;  // of reasoning, in all sections
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_thinking_budget(const LogitsProcessorInputs& inputs) {
  if (!inputs.params.thinking_budget || inputs.params.thinking_budget->forced_token_ids.empty())
    return nullptr;
  return std::make_unique<ThinkingTokens>(*inputs.params.thinking_budget, inputs.prompt);
}

}  // namespace troupe
