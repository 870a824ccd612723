#pragma once
// The content of the prefix cache, derived from its events.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "messages/kv_events.hpp"

namespace troupe {

/// The result of all events so far. A content held by several blocks exists until the last of them
/// is removed (events identify the content, not the block).
class StoredBlocks {
 public:
  void apply(const KVCacheEvent& event);

  /// Events that build this content from an empty cache: AllBlocksCleared, then the blocks, each
  /// after its parent (if that is stored), with consecutive ones merged into events of at most
  /// `max_blocks`. Hashes and tokens of an event match one to one.
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
      std::uint64_t bits;  // the bytes of a digest are uniformly distributed
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
    /// Without blocks: the fields common to consecutive blocks.
    std::shared_ptr<const BlocksStored> common;
  };
  using Blocks = std::unordered_map<Key, Block, KeyHash>;

  void add(const BlocksStored& event);

  Blocks blocks_;
  std::uint64_t next_order_ = 0;
};

}  // namespace troupe
