#pragma once
// What the prefix cache holds, as told by its events.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "messages/kv_events.hpp"

namespace troupe {

/// The sum of all events so far. A content that several blocks hold is there until the last of them
/// is removed (its events name the content, not the block).
class StoredBlocks {
 public:
  void apply(const KVCacheEvent& event);

  /// Events that make this content out of an empty cache: AllBlocksCleared, then the blocks, each
  /// after the one before it in its request (if that is stored), rows of them joined to one event
  /// of at most `max_blocks`. Hashes and tokens of an event match one to one.
  [[nodiscard]] std::vector<KVCacheEvent> events(std::size_t max_blocks) const;

  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }

 private:
  struct Key {
    BlockHash hash;
    std::int32_t group = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      std::uint64_t bits;  // a digest's bytes are evenly spread
      std::memcpy(&bits, key.hash.bytes.data(), sizeof bits);
      return static_cast<std::size_t>(bits ^ static_cast<std::uint64_t>(key.group));
    }
  };
  struct Block {
    std::int32_t num_holders = 0;
    std::uint64_t order = 0;  ///< of the first holder
    std::optional<BlockHash> predecessor;
    std::vector<TokenId> token_ids;
    std::vector<ExtraKey> extra_keys;
    std::shared_ptr<const BlocksStored> common;  ///< without blocks: what a row of them shares
  };
  using Blocks = std::unordered_map<Key, Block, KeyHash>;

  void add(const BlocksStored& event);

  Blocks blocks_;
  std::uint64_t next_order_ = 0;
};

}  // namespace troupe
