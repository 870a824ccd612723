#pragma once
// The merges of a BPE model as a flat hash map.

#include <cstdint>
#include <limits>
#include <vector>

#include "messages/ids.hpp"

namespace troupe {

/// Pair of ids -> rank and product. Open addressing with linear probing, at most half full.
class PairTable {
 public:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
  struct Merge {
    std::uint32_t rank = kNoRank;
    TokenId product = -1;
  };

  explicit PairTable(std::size_t num_merges) {
    std::size_t capacity = 16;
    while (capacity < 2 * num_merges) capacity *= 2;
    slots_.resize(capacity);
  }

  /// The later rank wins for a duplicate pair. Pre: at most the announced number of pairs.
  void add(TokenId left, TokenId right, Merge merge) {
    Slot& slot = slots_[find(key(left, right))];
    slot.key = key(left, right);
    slot.merge = merge;
  }

  /// The merge of a pair; its rank is kNoRank if there is none.
  [[nodiscard]] Merge merge(TokenId left, TokenId right) const noexcept {
    return slots_[find(key(left, right))].merge;
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kEmpty) visit(slot.merge);
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };

  static std::uint64_t key(TokenId left, TokenId right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t find(std::uint64_t key) const noexcept {
    // Fibonacci hashing; the high half of the product is well mixed.
    std::size_t i = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 32);
    const std::size_t mask = slots_.size() - 1;
    while (slots_[i & mask].key != key && slots_[i & mask].key != kEmpty) ++i;
    return i & mask;
  }

  std::vector<Slot> slots_;
};

}  // namespace troupe
