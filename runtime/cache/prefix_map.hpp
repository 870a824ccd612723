#pragma once
// Maps the hash of a block's content to the blocks that hold it.

#include <cstdint>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/cache/block_hash.hpp"

namespace troupe {

/// A block's content in the cache: hash and KV group.
struct BlockKey {
  BlockHash hash;
  std::int32_t group = 0;
  bool operator==(const BlockKey&) const = default;
};

/// An entry records that a block holds the content of a key. Several blocks may hold the same one:
/// find() returns the one inserted first. A block has one primary entry and, rarely, further ones
/// (for a shorter prefix that ends inside it).
///
/// Open addressing over indices into flat entries: no allocation per insertion, 64 bytes per block
/// for the entries and 16 to 32 for the table. Entry i < num_blocks is the primary one of block i.
/// With a million blocks each access to an entry is a cache miss: a slot repeats 32 bits of the
/// key, so that only the matching entry is accessed.
class PrefixMap {
 public:
  explicit PrefixMap(std::int32_t num_blocks);

  static constexpr BlockId kNotFound = -1;
  [[nodiscard]] BlockId find(const BlockKey& key) const;

  // Hints: the key will be looked up; the block's entry will be; its key will be erased.
  void prefetch(const BlockKey& key) const { prefetch_tag(tag_of(key.hash, key.group)); }
  void prefetch_entry(BlockId block) const {
    __builtin_prefetch(&entries_[static_cast<std::size_t>(block)]);
  }
  void prefetch_slot_of(BlockId block) const {
    if (has_entry(block)) prefetch_tag(tag_of(primary(block).hash, primary(block).group));
  }

  /// The block holds `key`, a prefix of num_tokens. If it already has a primary entry, this is a
  /// further one.
  void insert(const BlockKey& key, BlockId block, std::int32_t num_tokens);
  [[nodiscard]] bool has_entry(BlockId block) const { return primary(block).group >= 0; }
  /// The primary entry's key. Pre: has_entry(block).
  [[nodiscard]] BlockKey key(BlockId block) const;
  [[nodiscard]] std::int32_t num_tokens(BlockId block) const { return primary(block).num_tokens; }
  /// Whether the block has this key, in its primary or a further entry.
  [[nodiscard]] bool has_key(BlockId block, const BlockKey& key) const;

  /// Removes all entries of the block and calls removed(key) for each, the primary one first.
  template <class Function>
  void erase(BlockId block, Function&& removed) {
    while (has_entry(block)) removed(erase_first(block));
  }
  /// Moves all entries of `from` to `to`. Pre: `to` has none.
  void move_entries(BlockId from, BlockId to);
  void clear();

  /// Distinct keys.
  [[nodiscard]] std::size_t num_keys() const noexcept { return num_keys_; }

  struct Holders {
    BlockKey key;
    std::vector<BlockId> blocks;  ///< in the order of insertion
  };
  /// The keys that have had several holders at a time since they appeared. For tests.
  [[nodiscard]] std::vector<Holders> shared_keys() const;

 private:
  static constexpr std::int32_t kNone = -1;
  /// Entries of one key form a ring in the order of insertion; the table points to the first.
  struct alignas(64) Entry {  // a cache line
    BlockHash hash;
    std::int32_t group = kNone;  ///< kNone: unused
    BlockId block = 0;
    std::int32_t num_tokens = 0;
    std::int32_t previous = kNone;       ///< in the ring
    std::int32_t next = kNone;           ///< in the ring
    std::int32_t next_of_block = kNone;  ///< further entries of the same block
    bool shared = false;                 ///< first of a ring: see shared_keys
  };
  [[nodiscard]] const Entry& primary(BlockId block) const {
    return entries_[static_cast<std::size_t>(block)];
  }
  Entry& entry(std::int32_t index) { return entries_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const Entry& entry(std::int32_t index) const {
    return entries_[static_cast<std::size_t>(index)];
  }
  void prefetch_tag(std::uint32_t tag) const {
    __builtin_prefetch(&slots_[tag & (slots_.size() - 1)]);
  }
  BlockKey erase_first(BlockId block);
  void link(std::int32_t index);
  void unlink(std::int32_t index);
  struct Slot {
    std::int32_t index = kNone;  ///< of the key's first entry
    std::uint32_t tag = 0;
  };
  [[nodiscard]] static std::uint32_t tag_of(const BlockHash& hash, std::int32_t group);
  /// The slot of the key, or the empty one where it would be inserted.
  [[nodiscard]] std::size_t slot_of(const BlockHash& hash, std::int32_t group) const;
  void erase_slot(std::size_t slot);
  void grow();

  std::vector<Entry> entries_;
  std::vector<std::int32_t> unused_;  ///< entries beyond the primary ones
  std::vector<Slot> slots_;           ///< a power of two of them
  std::size_t num_keys_ = 0;
  std::int32_t num_blocks_;
};

}  // namespace troupe
