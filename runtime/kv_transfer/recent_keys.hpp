#pragma once
// Keys in the order of their last use.

#include <cstddef>
#include <list>
#include <unordered_map>

#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

class RecentKeys {
 public:
  [[nodiscard]] bool has(const StoreKey& key) const { return places_.contains(key); }
  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  /// As the latest, whether it was there or not.
  void put(const StoreKey& key) {
    const auto [place, is_new] = places_.try_emplace(key);
    if (is_new)
      place->second = order_.insert(order_.end(), key);
    else
      order_.splice(order_.end(), order_, place->second);
  }
  bool remove(const StoreKey& key) {
    const auto place = places_.find(key);
    if (place == places_.end()) return false;
    order_.erase(place->second);
    places_.erase(place);
    return true;
  }
  /// Pre: there is one.
  StoreKey take_oldest() {
    const StoreKey key = order_.front();
    remove(key);
    return key;
  }
  void clear() {
    order_.clear();
    places_.clear();
  }

 private:
  std::list<StoreKey> order_;
  std::unordered_map<StoreKey, std::list<StoreKey>::iterator, StoreKeyHash> places_;
};

}  // namespace troupe
