#pragma once
// What a block of the KV cache is kept under.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "messages/cache.hpp"
#include "messages/kv_events.hpp"

namespace troupe {

/// The hash of the prefix that the block completes, as vLLM's, and the KV-cache group: groups have
/// blocks of the same prefixes.
struct StoreKey {
  BlockHash hash;
  std::int32_t group = 0;
  bool operator==(const StoreKey&) const = default;
};
TROUPE_MESSAGE(StoreKey, hash, group)

struct StoreKeyHash {
  std::size_t operator()(const StoreKey& key) const noexcept {
    std::size_t bits = 0;  // of a digest: any of them will do
    std::memcpy(&bits, key.hash.bytes.data(), sizeof(bits));
    return bits ^ (static_cast<std::size_t>(key.group) * 0x9e3779b97f4a7c15U);
  }
};

/// A block of the pool and what it holds, or is to hold.
struct KeyedBlock {
  StoreKey key;
  BlockId block = kNullBlock;
  bool operator==(const KeyedBlock&) const = default;
};
TROUPE_MESSAGE(KeyedBlock, key, block)

}  // namespace troupe
