#pragma once
// Which pieces of prompts the workers' sides of the BlendConnector hold.

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "messages/kv_events.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// At most max_bytes of them; what was used least lately goes first, but for pieces that are
/// pinned: those that a request is blended with, or that are not whole yet.
class PieceIndex {
 public:
  explicit PieceIndex(std::int64_t max_bytes) noexcept : max_bytes_(max_bytes) {}

  /// Whether it is there and whole.
  [[nodiscard]] bool has(const BlockHash& key) const;
  /// Whether it is there, or about to be.
  [[nodiscard]] bool knows(const BlockHash& key) const { return entries_.contains({key, 0}); }
  /// A piece that is not whole yet. Appends to `removed` what goes for it; false: there is no room.
  /// Pre: it is not known.
  [[nodiscard]] bool begin(const BlockHash& key, std::int64_t num_bytes,
                           std::vector<BlockHash>& removed);
  /// Pre: begin().
  void complete(const BlockHash& key);
  void remove(const BlockHash& key);
  /// Pre: it is whole. As often as pinned, it is to be unpinned, if it is still there.
  void pin(const BlockHash& key);
  void unpin(const BlockHash& key);
  void clear();

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] std::int64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  struct Entry {
    std::int64_t num_bytes = 0;
    std::int32_t num_pins = 0;
    bool is_whole = false;
    std::list<BlockHash>::iterator place;  // in order_
  };
  using Entries = std::unordered_map<StoreKey, Entry, StoreKeyHash>;
  void erase(Entries::iterator entry);

  std::int64_t max_bytes_;
  std::int64_t num_bytes_ = 0;
  Entries entries_;
  std::list<BlockHash> order_;  // what was used last in the end
};

}  // namespace troupe
