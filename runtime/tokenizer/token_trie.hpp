#pragma once
// A byte trie of strings.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/work_budget.hpp"

namespace troupe {

/// Strings with a number each. The root has a table over all bytes, since every position of a text
/// is tried there; deeper nodes have few children.
class TokenTrie {
 public:
  TokenTrie() { roots_.fill(kNone); }

  /// The first of two equal strings stays; empty ones are ignored.
  void add(std::string_view text, std::size_t value) {
    if (text.empty()) return;
    std::int32_t node = kNone;
    for (const char c : text) node = child_or_new(node, static_cast<unsigned char>(c));
    std::int32_t& place = nodes_[static_cast<std::size_t>(node)].value;
    if (place == kNone) place = static_cast<std::int32_t>(value);
  }
  [[nodiscard]] bool empty() const noexcept { return nodes_.empty(); }

  /// Calls visit(end, value) for every string that starts at `from`, the shortest first. Returns
  /// the number of bytes traversed.
  template <class Visit>
  std::size_t for_each_prefix(std::string_view text, std::size_t from, const Visit& visit) const {
    std::int32_t node = roots_[static_cast<unsigned char>(text[from])];
    std::size_t i = from + 1;
    for (; node != kNone; ++i) {
      const std::int32_t value = nodes_[static_cast<std::size_t>(node)].value;
      if (value != kNone) visit(i, static_cast<std::size_t>(value));
      if (i == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[i]));
    }
    return i - from;
  }

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::size_t value;
  };
  /// The leftmost match at or after `from`, and there the longest.
  [[nodiscard]] std::optional<Match> find_longest(std::string_view text, std::size_t from,
                                                  WorkBudget& work) const {
    std::optional<Match> longest;
    for (; from < text.size() && !longest; ++from) {
      const std::size_t walked =
          for_each_prefix(text, from, [&](std::size_t end, std::size_t value) {
            longest = Match{from, end, value};
          });
      work.charge(walked);
    }
    return longest;
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> children;
    std::int32_t value = kNone;
  };

  [[nodiscard]] std::int32_t child(std::int32_t node, unsigned char byte) const noexcept {
    for (const auto& [key, target] : nodes_[static_cast<std::size_t>(node)].children) {
      if (key == byte) return target;
    }
    return kNone;
  }
  /// kNone as `node` is the root.
  std::int32_t child_or_new(std::int32_t node, unsigned char byte) {
    const std::int32_t existing = node == kNone ? roots_[byte] : child(node, byte);
    if (existing != kNone) return existing;
    const auto made = static_cast<std::int32_t>(nodes_.size());
    if (node == kNone) {
      roots_[byte] = made;
    } else {
      nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, made);
    }
    nodes_.emplace_back();
    return made;
  }

  std::array<std::int32_t, 256> roots_;
  std::vector<Node> nodes_;
};

}  // namespace troupe
