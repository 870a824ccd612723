#include "runtime/cache/block_metrics.hpp"

#include <algorithm>

namespace troupe {

void BlockMetrics::on_taken(BlockId block) {
  if (std::uniform_real_distribution<double>()(random_) >= sample_rate_) return;
  observed_[block] = {.taken_at = now_, .used_at = now_, .hits_at = {}};
}

void BlockMetrics::on_hit(BlockId block) {
  const auto found = observed_.find(block);
  if (found == observed_.end()) return;
  Observed& observed = found->second;
  observed.used_at = now_;
  observed.hits_at[observed.num_hits++ % observed.hits_at.size()] = now_;
}

void BlockMetrics::on_evicted(BlockId block) {
  const auto found = observed_.find(block);
  if (found == observed_.end()) return;
  const Observed& observed = found->second;
  BlockResidency& residency = ended_.emplace_back();
  residency.lifetime_s = now_ - observed.taken_at;
  residency.idle_s = now_ - observed.used_at;
  const std::size_t size = observed.hits_at.size();
  for (std::size_t i = observed.num_hits - std::min(observed.num_hits, size) + 1;
       i < observed.num_hits; ++i)
    residency.reuse_gaps_s.push_back(observed.hits_at[i % size] - observed.hits_at[(i - 1) % size]);
  observed_.erase(found);
}

void BlockMetrics::clear() {
  observed_.clear();
  ended_.clear();
}

}  // namespace troupe
