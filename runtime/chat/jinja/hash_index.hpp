#pragma once
// Lookup by key in ordered sequences.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::jinja {

/// Linear search is faster than hashing up to this many named entries.
inline constexpr std::size_t kFewEntries = 8;

/// Maps hashes of keys to positions in a sequence owned by the caller: open addressing with linear
/// probing, at most half full. The hash function must be keyed, so that clients cannot construct
/// collisions.
class HashIndex {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// The position for which has_key(position) holds; kNone if there is none.
  template <class HasKey>
  [[nodiscard]] std::size_t find(std::uint64_t hash, const HasKey& has_key) const {
    if (slots_.empty()) return kNone;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask; slots_[i].position != kNone; i = (i + 1) & mask) {
      if (slots_[i].hash == hash && has_key(slots_[i].position)) return slots_[i].position;
    }
    return kNone;
  }

  /// Pre: find() does not find the key.
  void add(std::uint64_t hash, std::size_t position) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    ++size_;
    place({hash, position});
  }

  void clear() {
    slots_.clear();
    size_ = 0;
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::size_t position = kNone;
  };

  void place(Slot slot) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = slot.hash & mask;
    while (slots_[i].position != kNone) i = (i + 1) & mask;
    slots_[i] = slot;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 4 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.position != kNone) place(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace troupe::jinja
