#pragma once
// Which block of a full store goes first.

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// Orders the keys of a store. It does not count bytes: its owner asks for victims until there is
/// room.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// A key that is not there.
  virtual void add(const StoreKey& key) = 0;
  /// A key that is there is used.
  virtual void touch(const StoreKey& key) = 0;
  /// Removes a key. Pre: there is one.
  [[nodiscard]] virtual StoreKey evict() = 0;
  /// An existing key was removed for another reason.
  virtual void remove(const StoreKey& key) = 0;
  virtual void clear() = 0;
};

/// The least recently used one.
[[nodiscard]] std::unique_ptr<EvictionPolicy> make_lru_policy();
/// Adaptive replacement cache (Megiddo and Modha, FAST 2003): keys that were used once and keys
/// that were used more often have shares of the store that follow what is missed.
[[nodiscard]] std::unique_ptr<EvictionPolicy> make_arc_policy();

/// By vLLM's names, "lru" and "arc". Errors: kInvalidArgument, an unknown name.
[[nodiscard]] Result<std::unique_ptr<EvictionPolicy>> make_eviction_policy(const std::string& name);

}  // namespace troupe
