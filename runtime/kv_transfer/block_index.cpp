#include "runtime/kv_transfer/block_index.hpp"

namespace troupe {

bool BlockIndex::touch(const StoreKey& key) {
  if (!has(key)) return false;
  policy_->touch(key);
  return true;
}

bool BlockIndex::add(const StoreKey& key, std::int64_t num_bytes, std::vector<StoreKey>& removed) {
  if (max_bytes_ > 0 && num_bytes > max_bytes_) return false;
  while (max_bytes_ > 0 && num_bytes_ + num_bytes > max_bytes_) {
    removed.push_back(policy_->evict());
    const auto found = blocks_.find(removed.back());
    num_bytes_ -= found->second;
    blocks_.erase(found);
  }
  blocks_.emplace(key, num_bytes);
  policy_->add(key);
  num_bytes_ += num_bytes;
  return true;
}

bool BlockIndex::remove(const StoreKey& key) {
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return false;
  num_bytes_ -= found->second;
  blocks_.erase(found);
  policy_->remove(key);
  return true;
}

std::vector<StoreKey> BlockIndex::keys() const {
  std::vector<StoreKey> keys;
  for (const auto& [key, bytes] : blocks_) keys.push_back(key);
  return keys;
}

void BlockIndex::clear() {
  blocks_.clear();
  policy_->clear();
  num_bytes_ = 0;
}

}  // namespace troupe
