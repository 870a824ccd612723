#pragma once
// Events of blocks of two tokens whose hash, predecessor and tokens follow from a number.

#include <cstring>
#include <optional>
#include <vector>

#include "messages/kv_events.hpp"

namespace troupe::testing {

inline BlockHash hash_of(int number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof number);
  return hash;
}

inline int number_of(const BlockHash& hash) {
  int number = 0;
  std::memcpy(&number, hash.bytes.data(), sizeof number);
  return number;
}

/// A row of blocks, each after the one before it in the list.
inline BlocksStored stored(const std::vector<int>& numbers,
                           std::optional<BlockHash> parent = std::nullopt) {
  BlocksStored event;
  event.block_size = 2;
  event.parent = parent;
  for (const int number : numbers) {
    event.predecessors.push_back(event.hashes.empty() ? parent
                                                      : std::optional(event.hashes.back()));
    event.block_indices.push_back(static_cast<std::int32_t>(event.hashes.size()));
    event.hashes.push_back(hash_of(number));
    event.token_ids.insert(event.token_ids.end(), {2 * number, 2 * number + 1});
  }
  event.extra_keys.resize(numbers.size());
  return event;
}

}  // namespace troupe::testing
