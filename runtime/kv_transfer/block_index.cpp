#include "runtime/kv_transfer/block_index.hpp"

namespace troupe {

bool BlockIndex::touch(const StoreKey& key) {
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return false;
  by_use_.splice(by_use_.end(), by_use_, found->second.use);
  return true;
}

bool BlockIndex::add(const StoreKey& key, std::int64_t num_bytes, std::vector<StoreKey>& removed) {
  if (max_bytes_ > 0 && num_bytes > max_bytes_) return false;
  while (max_bytes_ > 0 && num_bytes_ + num_bytes > max_bytes_) {
    removed.push_back(by_use_.front());
    remove(removed.back());
  }
  blocks_.emplace(key, Block{num_bytes, by_use_.insert(by_use_.end(), key)});
  num_bytes_ += num_bytes;
  return true;
}

bool BlockIndex::remove(const StoreKey& key) {
  const auto found = blocks_.find(key);
  if (found == blocks_.end()) return false;
  num_bytes_ -= found->second.num_bytes;
  by_use_.erase(found->second.use);
  blocks_.erase(found);
  return true;
}

void BlockIndex::clear() {
  blocks_.clear();
  by_use_.clear();
  num_bytes_ = 0;
}

}  // namespace troupe
