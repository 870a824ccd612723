// Nothing but these tokens.

#include <algorithm>
#include <limits>

#include "runtime/worker/logits_processors/kinds.hpp"

namespace troupe {
namespace {

class AllowedTokenIds final : public LogitsProcessor {
 public:
  explicit AllowedTokenIds(SharedVector<TokenId> ids) : ids_(std::move(ids)) {
    if (std::is_sorted(ids_.begin(), ids_.end())) return;
    std::vector<TokenId>& sorted = ids_.edit();
    std::sort(sorted.begin(), sorted.end());
  }
  std::unique_ptr<LogitsProcessor> clone() const override {
    return std::make_unique<AllowedTokenIds>(*this);
  }

  void apply(std::span<float> logits) const override {
    constexpr float kForbidden = -std::numeric_limits<float>::infinity();
    std::size_t next = 0;
    for (const TokenId token : ids_) {
      if (token < 0) continue;
      const std::size_t allowed = std::min(static_cast<std::size_t>(token), logits.size());
      while (next < allowed) logits[next++] = kForbidden;
      next = std::max(next, allowed + 1);
    }
    while (next < logits.size()) logits[next++] = kForbidden;
  }

 private:
  SharedVector<TokenId> ids_;  // sorted
};

}  // namespace

std::unique_ptr<LogitsProcessor> make_allowed_token_ids(const LogitsProcessorInputs& inputs) {
  if (inputs.params.allowed_token_ids.empty()) return nullptr;
  return std::make_unique<AllowedTokenIds>(inputs.params.allowed_token_ids);
}

}  // namespace troupe
