#pragma once
// The block pool of the KV cache: free queue, reference counts and content of blocks.

#include <cstdint>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/cache/block_metrics.hpp"
#include "runtime/cache/kv_events.hpp"
#include "runtime/cache/prefix_map.hpp"

namespace troupe {

/// Owns the blocks 0 .. num_blocks-1 of all groups. Block 0 is the null block: never free, never
/// allocated, and its references are not counted.
///
/// Invariants: a block is in the free queue exactly when it has no references; a free block keeps
/// its content (and may be hit) until it is allocated. Allocation is from the queue's head, so its
/// order is the order of eviction.
///
/// Memory per block: 12 bytes here and 80 to 96 in the prefix map, so 92 to 108 MB for a million
/// blocks. Allocating, freeing or finding one costs a few cache misses, less than 100 ns
/// (tests/support/bench_cache.cpp).
class BlockPool {
 public:
  /// `metrics` is notified of allocations, hits and evictions; may be null.
  BlockPool(std::int32_t num_blocks, bool record_events, BlockMetrics* metrics = nullptr);

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  [[nodiscard]] std::int32_t num_free_blocks() const noexcept { return num_free_; }
  /// Fraction of the usable blocks in use, 0..1.
  [[nodiscard]] double usage() const noexcept;

  /// Allocates n blocks from the head of the queue, with one reference each and without content;
  /// appends them to `blocks`. Pre: n <= num_free_blocks().
  void take(std::int32_t n, std::vector<BlockId>& blocks);
  /// Adds a reference; a free block leaves the queue.
  void touch(BlockId block);
  /// Drops one reference each. Blocks that become free are queued in this order: those without
  /// content at the front, those with content at the end. Null blocks are skipped.
  void free(std::span<const BlockId> blocks);

  [[nodiscard]] std::int32_t num_references(BlockId block) const { return at(block).references; }
  [[nodiscard]] const PrefixMap& prefix_map() const noexcept { return map_; }
  /// PrefixMap::kNotFound if no block holds it.
  [[nodiscard]] BlockId find(const BlockHash& hash, std::int32_t group) const {
    return map_.find({hash, group});
  }
  /// Hint: the content will be looked up, or set.
  void prefetch(const BlockKey& key) const { map_.prefetch(key); }
  /// The block now holds the prefix of num_tokens with this key.
  void set_content(BlockId block, const BlockKey& key, std::int32_t num_tokens) {
    map_.insert(key, block, num_tokens);
  }
  /// Evicts the block's content, with an event for each key.
  void drop_content(BlockId block);
  void move_content(BlockId from, BlockId to) { map_.move_entries(from, to); }
  /// Evicts all content. False, without effect, if a block is in use.
  bool reset();

  [[nodiscard]] bool records_events() const noexcept { return record_events_; }
  template <class Event>
  void record(Event event) {
    events_.emplace_back(std::in_place_type<Event>, std::move(event));
  }
  [[nodiscard]] std::vector<KVCacheEvent> take_events() { return std::exchange(events_, {}); }

  /// From head to tail.
  [[nodiscard]] std::vector<BlockId> free_queue() const;

 private:
  struct Block {
    BlockId previous = 0;  ///< in the free queue
    BlockId next = 0;
    std::int32_t references = 0;
  };
  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Block& at(BlockId block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  void insert_before(BlockId position, BlockId block);
  void remove_from_queue(BlockId block);

  std::int32_t num_blocks_;
  std::int32_t num_free_ = 0;
  bool record_events_;
  std::vector<Block> blocks_;  ///< one more than blocks: the sentinel of the circular queue
  PrefixMap map_;
  BlockMetrics* metrics_;
  std::vector<KVCacheEvent> events_;
  std::vector<BlockId> without_content_;  ///< scratch of free()
};

}  // namespace troupe
