// The last token of a word is forbidden where the outputs end with all that comes before it.

#include <algorithm>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

class BadWords final : public LogitsProcessor {
 public:
  explicit BadWords(SharedVector<std::vector<TokenId>> words) : words_(std::move(words)) {
    for (const std::vector<TokenId>& word : words_)
      if (!word.empty()) max_recent_ = std::max(max_recent_, word.size() - 1);
  }
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<BadWords>(*this);
  }

  void append(TokenId token) override {
    if (max_recent_ == 0) return;
    if (recent_outputs_.size() == 2 * max_recent_) {
      recent_outputs_.erase(recent_outputs_.begin(),
                            recent_outputs_.begin() + static_cast<std::ptrdiff_t>(max_recent_));
    }
    recent_outputs_.push_back(token);
  }

  void apply(std::span<float> logits) const override {
    for (const std::vector<TokenId>& word : words_) {
      if (word.empty() || word.size() - 1 > recent_outputs_.size()) continue;
      if (std::equal(word.begin(), word.end() - 1,
                     recent_outputs_.end() - static_cast<std::ptrdiff_t>(word.size() - 1))) {
        forbid(logits, word.back());
      }
    }
  }

 private:
  SharedVector<std::vector<TokenId>> words_;
  std::vector<TokenId> recent_outputs_;  // at least the last max_recent_, oldest first
  std::size_t max_recent_ = 0;           // what the longest word looks back
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_bad_words(const LogitsProcessorInputs& inputs) {
  if (inputs.params.bad_words_token_ids.empty()) return nullptr;
  return std::make_unique<BadWords>(inputs.params.bad_words_token_ids);
}

}  // namespace troupe
