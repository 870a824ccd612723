#include "runtime/kv_transfer/piece_index.hpp"

#include "runtime/base/check.hpp"

namespace troupe {

bool PieceIndex::has(const BlockHash& key) const {
  const auto found = entries_.find({key, 0});
  return found != entries_.end() && found->second.is_whole;
}

bool PieceIndex::begin(const BlockHash& key, std::int64_t num_bytes,
                       std::vector<BlockHash>& removed) {
  CHECK(!knows(key));
  if (num_bytes_ + num_bytes > max_bytes_) {
    // Nothing goes for a piece that has no room in the end.
    std::int64_t num_pinned_bytes = 0;
    for (const auto& [other, entry] : entries_)
      if (entry.num_pins > 0 || !entry.is_whole) num_pinned_bytes += entry.num_bytes;
    if (num_pinned_bytes + num_bytes > max_bytes_) return false;
  }
  for (auto next = order_.begin(); num_bytes_ + num_bytes > max_bytes_;) {
    const auto entry = entries_.find({*next++, 0});
    if (entry->second.num_pins > 0 || !entry->second.is_whole) continue;
    removed.push_back(entry->first.hash);
    erase(entry);
  }
  num_bytes_ += num_bytes;
  const auto place = order_.insert(order_.end(), key);
  entries_.emplace(StoreKey{key, 0}, Entry{.num_bytes = num_bytes, .place = place});
  return true;
}

void PieceIndex::erase(Entries::iterator entry) {
  num_bytes_ -= entry->second.num_bytes;
  order_.erase(entry->second.place);
  entries_.erase(entry);
}

void PieceIndex::complete(const BlockHash& key) {
  const auto found = entries_.find({key, 0});
  CHECK(found != entries_.end());
  found->second.is_whole = true;
}

void PieceIndex::remove(const BlockHash& key) {
  if (const auto found = entries_.find({key, 0}); found != entries_.end()) erase(found);
}

void PieceIndex::pin(const BlockHash& key) {
  Entry& entry = entries_.at({key, 0});
  ++entry.num_pins;
  order_.splice(order_.end(), order_, entry.place);
}

void PieceIndex::unpin(const BlockHash& key) {
  if (const auto found = entries_.find({key, 0}); found != entries_.end())
    if (found->second.num_pins > 0) --found->second.num_pins;
}

void PieceIndex::clear() {
  entries_.clear();
  order_.clear();
  num_bytes_ = 0;
}

}  // namespace troupe
