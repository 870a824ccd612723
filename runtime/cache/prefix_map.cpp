#include "runtime/cache/prefix_map.hpp"

#include <bit>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe {

PrefixMap::PrefixMap(std::int32_t num_blocks)
    : entries_(static_cast<std::size_t>(num_blocks)),
      slots_(std::bit_ceil(static_cast<std::size_t>(num_blocks) * 2 + 2)),
      num_blocks_(num_blocks) {}

std::uint32_t PrefixMap::tag_of(const BlockHash& hash, std::int32_t group) {
  // The digest's bytes are uniformly distributed: four of them serve as the hash.
  std::uint32_t bits;
  std::memcpy(&bits, hash.bytes.data(), sizeof bits);
  return bits ^ static_cast<std::uint32_t>(group) * 0x9e3779b9u;
}

std::size_t PrefixMap::slot_of(const BlockHash& hash, std::int32_t group) const {
  const std::uint32_t tag = tag_of(hash, group);
  std::size_t slot = tag & (slots_.size() - 1);
  for (; slots_[slot].index != kNone; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].tag != tag) continue;
    const Entry& found = entry(slots_[slot].index);
    if (found.group == group && found.hash == hash) break;
  }
  return slot;
}

BlockId PrefixMap::find(const BlockKey& key) const {
  const std::int32_t index = slots_[slot_of(key.hash, key.group)].index;
  return index == kNone ? kNotFound : entry(index).block;
}

BlockKey PrefixMap::key(BlockId block) const {
  const Entry& found = primary(block);
  return {found.hash, found.group};
}

bool PrefixMap::has_key(BlockId block, const BlockKey& key) const {
  if (!has_entry(block)) return false;
  for (std::int32_t i = block; i != kNone; i = entry(i).next_of_block)
    if (entry(i).group == key.group && entry(i).hash == key.hash) return true;
  return false;
}

void PrefixMap::insert(const BlockKey& key, BlockId block, std::int32_t num_tokens) {
  std::int32_t index = block;
  if (has_entry(block)) {
    if (unused_.empty()) {
      index = static_cast<std::int32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    entry(index) = Entry{};
    entry(index).next_of_block = entry(block).next_of_block;
    entry(block).next_of_block = index;
  }
  Entry& added = entry(index);
  added.hash = key.hash;
  added.group = key.group;
  added.block = block;
  added.num_tokens = num_tokens;
  link(index);
}

void PrefixMap::link(std::int32_t index) {
  if ((num_keys_ + 1) * 4 > slots_.size() * 3) grow();
  Entry& added = entry(index);
  const std::size_t slot = slot_of(added.hash, added.group);
  if (slots_[slot].index == kNone) {
    slots_[slot] = {index, tag_of(added.hash, added.group)};
    added.previous = added.next = index;
    added.shared = false;
    ++num_keys_;
    return;
  }
  Entry& first = entry(slots_[slot].index);
  first.shared = true;
  added.previous = first.previous;
  added.next = slots_[slot].index;
  entry(first.previous).next = index;
  first.previous = index;
}

void PrefixMap::unlink(std::int32_t index) {
  Entry& gone = entry(index);
  const std::size_t slot = slot_of(gone.hash, gone.group);
  CHECK(slots_[slot].index != kNone, index);
  if (gone.next == index) {
    erase_slot(slot);
    --num_keys_;
    return;
  }
  entry(gone.previous).next = gone.next;
  entry(gone.next).previous = gone.previous;
  if (slots_[slot].index == index) {
    slots_[slot].index = gone.next;
    entry(gone.next).shared = gone.shared;
  }
}

BlockKey PrefixMap::erase_first(BlockId block) {
  const BlockKey erased = key(block);
  unlink(block);
  const std::int32_t further = entry(block).next_of_block;
  if (further == kNone) {
    entry(block).group = kNone;
    return erased;
  }
  // The next entry becomes the primary one: its neighbours must find it there.
  unlink(further);
  const Entry moved = entry(further);
  entry(further).group = kNone;
  unused_.push_back(further);
  entry(block) = moved;
  link(block);
  return erased;
}

void PrefixMap::move_entries(BlockId from, BlockId to) {
  CHECK(!has_entry(to), to);
  while (has_entry(from)) {
    const std::int32_t num_tokens = primary(from).num_tokens;
    insert(erase_first(from), to, num_tokens);
  }
}

void PrefixMap::erase_slot(std::size_t slot) {
  // Backward-shift deletion: following entries move up unless they would leave their probe
  // sequence.
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = slot;
  for (std::size_t i = (hole + 1) & mask; slots_[i].index != kNone; i = (i + 1) & mask) {
    const std::size_t distance_from_home = (i - slots_[i].tag) & mask;
    if (distance_from_home >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole] = {};
}

void PrefixMap::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& moved : old) {
    if (moved.index == kNone) continue;
    std::size_t slot = moved.tag & mask;
    while (slots_[slot].index != kNone) slot = (slot + 1) & mask;
    slots_[slot] = moved;
  }
}

void PrefixMap::clear() {
  entries_.assign(static_cast<std::size_t>(num_blocks_), Entry{});
  unused_.clear();
  slots_.assign(slots_.size(), {});
  num_keys_ = 0;
}

std::vector<PrefixMap::Holders> PrefixMap::shared_keys() const {
  std::vector<Holders> result;
  for (const auto& [first, tag] : slots_) {
    if (first == kNone || !entry(first).shared) continue;
    Holders& holders = result.emplace_back();
    holders.key = {entry(first).hash, entry(first).group};
    std::int32_t i = first;
    do {
      holders.blocks.push_back(entry(i).block);
      i = entry(i).next;
    } while (i != first);
  }
  return result;
}

}  // namespace troupe
