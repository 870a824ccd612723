#include <algorithm>

#include "runtime/kv_transfer/eviction_policy.hpp"
#include "runtime/kv_transfer/recent_keys.hpp"

namespace troupe {
namespace {

/// T1 and T2 of the paper are once_ and often_, B1 and B2 what was evicted from them, p is
/// num_once_. The capacity, c, is the number of keys that there are: blocks have several sizes.
class ArcPolicy final : public EvictionPolicy {
 public:
  void add(const StoreKey& key) override {
    const auto share = [](std::size_t other, std::size_t own) {
      return std::max(1.0, static_cast<double>(other) / static_cast<double>(own));
    };
    if (evicted_once_.has(key)) {
      num_once_ = std::min(num_once_ + share(evicted_often_.size(), evicted_once_.size()),
                           static_cast<double>(capacity()));
      evicted_once_.remove(key);
      often_.put(key);
    } else if (evicted_often_.has(key)) {
      num_once_ = std::max(num_once_ - share(evicted_once_.size(), evicted_often_.size()), 0.0);
      evicted_often_.remove(key);
      often_.put(key);
    } else {
      once_.put(key);
    }
  }
  void touch(const StoreKey& key) override {
    once_.remove(key);
    often_.put(key);
  }
  StoreKey evict() override {
    const std::size_t most = capacity();
    const bool from_once =
        once_.size() > 0 && (often_.size() == 0 || static_cast<double>(once_.size()) > num_once_);
    const StoreKey key = (from_once ? once_ : often_).take_oldest();
    RecentKeys& evicted = from_once ? evicted_once_ : evicted_often_;
    evicted.put(key);
    while (evicted.size() > most) evicted.take_oldest();
    return key;
  }
  void remove(const StoreKey& key) override {
    once_.remove(key);
    often_.remove(key);
  }
  void clear() override {
    for (RecentKeys* keys : {&once_, &often_, &evicted_once_, &evicted_often_}) keys->clear();
    num_once_ = 0;
  }

 private:
  [[nodiscard]] std::size_t capacity() const noexcept { return once_.size() + often_.size(); }

  RecentKeys once_;
  RecentKeys often_;
  RecentKeys evicted_once_;
  RecentKeys evicted_often_;
  double num_once_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_arc_policy() { return std::make_unique<ArcPolicy>(); }

}  // namespace troupe
