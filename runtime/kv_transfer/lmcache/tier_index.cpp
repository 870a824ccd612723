#include "runtime/kv_transfer/lmcache/tier_index.hpp"

#include <array>
#include <utility>

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
  const Rank rank = std::exchange(chunk.rank, next_rank(chunk));
  if (chunk.num_pins > 0) return true;
  auto node = by_rank_.extract(rank);
  node.key() = chunk.rank;
  by_rank_.insert(std::move(node));
  return true;
}

bool TierIndex::add(const ChunkId& id, std::int64_t num_bytes, std::vector<ChunkId>& removed) {
  if (max_bytes_ > 0 && num_bytes > max_bytes_ - num_pinned_bytes_) return false;
  while (max_bytes_ > 0 && num_bytes_ + num_bytes > max_bytes_) {
    removed.push_back(by_rank_.begin()->second);
    remove(removed.back());
  }
  Held chunk{.num_bytes = num_bytes, .num_uses = 0, .rank = {}, .num_pins = 0};
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
  if (found->second.num_pins > 0)
    num_pinned_bytes_ -= found->second.num_bytes;
  else
    by_rank_.erase(found->second.rank);
  chunks_.erase(found);
  return true;
}

void TierIndex::clear() {
  chunks_.clear();
  by_rank_.clear();
  num_bytes_ = 0;
  num_pinned_bytes_ = 0;
}

bool TierIndex::pin(const ChunkId& id) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return false;
  if (found->second.num_pins++ > 0) return true;
  by_rank_.erase(found->second.rank);
  num_pinned_bytes_ += found->second.num_bytes;
  return true;
}

void TierIndex::unpin(const ChunkId& id) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end() || found->second.num_pins == 0 || --found->second.num_pins > 0) return;
  by_rank_.emplace(found->second.rank, id);
  num_pinned_bytes_ -= found->second.num_bytes;
}

std::vector<ChunkId> TierIndex::clear_unpinned() {
  std::vector<ChunkId> removed;
  for (auto& [rank, id] : std::exchange(by_rank_, {})) {
    const auto found = chunks_.find(id);
    num_bytes_ -= found->second.num_bytes;
    chunks_.erase(found);
    removed.push_back(std::move(id));
  }
  return removed;
}

}  // namespace troupe::lmcache
