#pragma once
// Caches the tokens of short words per thread.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/model.hpp"

namespace troupe {

/// A direct-mapped cache: a word has one slot, and the last word there wins. Fixed size, no
/// allocation per entry. Entries record their owner, so models on the same thread can share it.
class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 31;
  static constexpr std::size_t kMaxTokens = 8;

  struct Entry {
    std::uint64_t owner = 0;  ///< 0: empty
    std::uint8_t num_bytes = 0;
    std::uint8_t num_tokens = 0;
    std::array<char, kMaxWordBytes> bytes;
    std::array<std::uint8_t, kMaxTokens> ends;
    std::array<TokenId, kMaxTokens> ids;

    [[nodiscard]] bool holds(std::uint64_t asker, std::string_view word) const noexcept {
      return owner == asker && num_bytes == word.size() &&
             std::memcmp(bytes.data(), word.data(), word.size()) == 0;
    }
  };

  /// The thread's cache.
  static WordCache& instance() {
    static thread_local WordCache cache;
    return cache;
  }

  /// The slot of a word. Pre: 1 <= word.size() <= kMaxWordBytes.
  Entry& place_of(std::uint64_t owner, std::string_view word) noexcept {
    return entries_[hash(owner, word) & (kNumEntries - 1)];
  }

  static void store(Entry& entry, std::uint64_t owner, std::string_view word,
                    std::span<const PieceToken> tokens, std::uint32_t offset) noexcept {
    entry.owner = owner;
    entry.num_bytes = static_cast<std::uint8_t>(word.size());
    entry.num_tokens = static_cast<std::uint8_t>(tokens.size());
    std::memcpy(entry.bytes.data(), word.data(), word.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      entry.ids[i] = tokens[i].id;
      entry.ends[i] = static_cast<std::uint8_t>(tokens[i].end - offset);
    }
  }

 private:
  static constexpr std::size_t kNumEntries = 1 << 14;

  WordCache() : entries_(kNumEntries) {}

  static std::uint64_t hash(std::uint64_t owner, std::string_view word) noexcept {
    std::uint64_t h = owner ^ (word.size() * 0x9E3779B97F4A7C15u);
    const char* at = word.data();
    std::size_t left = word.size();
    while (left >= 8) {
      h = mix(h, load(at, 8));
      at += 8;
      left -= 8;
    }
    if (left > 0) h = mix(h, load(at, left));
    return h ^ (h >> 32);
  }
  static std::uint64_t load(const char* at, std::size_t num_bytes) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, at, num_bytes);
    return word;
  }
  static std::uint64_t mix(std::uint64_t h, std::uint64_t word) noexcept {
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    return h ^ (h >> 29);
  }

  std::vector<Entry> entries_;
};

}  // namespace troupe
