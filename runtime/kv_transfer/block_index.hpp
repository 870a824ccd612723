#pragma once
// What a store holds, and what goes first.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/kv_transfer/eviction_policy.hpp"

namespace troupe {

/// The keys of a store with at most max_bytes of blocks. The Scheduler's side of a connector owns
/// it and decides what the stores of all ranks save and remove, so that their contents are equal.
class BlockIndex {
 public:
  /// max_bytes 0: no limit.
  explicit BlockIndex(std::int64_t max_bytes,
                      std::unique_ptr<EvictionPolicy> policy = make_lru_policy())
      : max_bytes_(max_bytes), policy_(std::move(policy)) {}

  [[nodiscard]] bool has(const StoreKey& key) const { return blocks_.contains(key); }
  /// It counts as used last. False: it is not there.
  bool touch(const StoreKey& key);
  /// Adds a key that is not there, as used last. `removed` gets the keys that had to go. False:
  /// the block is larger than the limit, nothing was changed.
  bool add(const StoreKey& key, std::int64_t num_bytes, std::vector<StoreKey>& removed);
  bool remove(const StoreKey& key);
  void clear();

  [[nodiscard]] std::vector<StoreKey> keys() const;
  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] std::int64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  std::int64_t max_bytes_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::int64_t num_bytes_ = 0;
  std::unordered_map<StoreKey, std::int64_t, StoreKeyHash> blocks_;  // bytes
};

}  // namespace troupe
