#include "runtime/kv_transfer/eviction_policy.hpp"
#include "runtime/kv_transfer/recent_keys.hpp"

namespace troupe {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  void add(const StoreKey& key) override { keys_.put(key); }
  void touch(const StoreKey& key) override { keys_.put(key); }
  StoreKey evict() override { return keys_.take_oldest(); }
  void remove(const StoreKey& key) override { keys_.remove(key); }
  void clear() override { keys_.clear(); }

 private:
  RecentKeys keys_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy() { return std::make_unique<LruPolicy>(); }

}  // namespace troupe
