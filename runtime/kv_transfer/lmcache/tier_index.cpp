#include "runtime/kv_transfer/lmcache/tier_index.hpp"

#include <array>

namespace troupe::lmcache {

Result<CachePolicy> parse_cache_policy(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, CachePolicy>, 4> kPolicies = {
      {{"LRU", CachePolicy::kLru},
       {"LFU", CachePolicy::kLfu},
       {"FIFO", CachePolicy::kFifo},
       {"MRU", CachePolicy::kMru}}};
  for (const auto& [known, policy] : kPolicies)
    if (known == name) return policy;
  return invalid_argument("cache_policy is " + std::string(name) +
                          ", it must be LRU, LFU, FIFO or MRU");
}

TierIndex::Rank TierIndex::next_rank(const Held& chunk) {
  const std::uint64_t use = ++last_use_;
  switch (policy_) {
    case CachePolicy::kLru:
    case CachePolicy::kFifo:
      return {use, 0};
    case CachePolicy::kLfu:
      return {chunk.num_uses, use};
    case CachePolicy::kMru:
      break;
  }
  return {~use, 0};
}

bool TierIndex::touch(const ChunkId& id) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return false;
  Held& chunk = found->second;
  if (policy_ == CachePolicy::kFifo) return true;
  ++chunk.num_uses;
  auto node = by_rank_.extract(chunk.rank);
  node.key() = chunk.rank = next_rank(chunk);
  by_rank_.insert(std::move(node));
  return true;
}

bool TierIndex::add(const ChunkId& id, std::int64_t num_bytes, std::vector<ChunkId>& removed) {
  if (max_bytes_ > 0 && num_bytes > max_bytes_) return false;
  while (max_bytes_ > 0 && num_bytes_ + num_bytes > max_bytes_) {
    removed.push_back(by_rank_.begin()->second);
    remove(removed.back());
  }
  Held chunk{.num_bytes = num_bytes, .num_uses = 0, .rank = {}};
  chunk.rank = next_rank(chunk);
  by_rank_.emplace(chunk.rank, id);
  chunks_.emplace(id, chunk);
  num_bytes_ += num_bytes;
  return true;
}

bool TierIndex::remove(const ChunkId& id) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return false;
  num_bytes_ -= found->second.num_bytes;
  by_rank_.erase(found->second.rank);
  chunks_.erase(found);
  return true;
}

void TierIndex::clear() {
  chunks_.clear();
  by_rank_.clear();
  num_bytes_ = 0;
}

}  // namespace troupe::lmcache
