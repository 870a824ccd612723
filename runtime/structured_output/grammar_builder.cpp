#include "runtime/structured_output/grammar_builder.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {

ByteSet byte_range(unsigned char first, unsigned char last) {
  ByteSet set;
  for (unsigned b = first; b <= last; ++b) set.set(b);
  return set;
}

CodePointSet::CodePointSet(std::initializer_list<Range> ranges) {
  for (const auto& [first, last] : ranges) add(first, last);
}

void CodePointSet::add(std::uint32_t first, std::uint32_t last) {
  // The ranges that touch the new one become part of it.
  auto begin =
      std::lower_bound(ranges_.begin(), ranges_.end(), first,
                       [](const Range& range, std::uint32_t f) { return range.second + 1 < f; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->second);
    ++end;
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {first, last});
}

void CodePointSet::add(const CodePointSet& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  std::uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) result.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kMax) result.ranges_.emplace_back(next, kMax);
  return result;
}

CodePointSet CodePointSet::intersection(const CodePointSet& other) const {
  CodePointSet result;
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const std::uint32_t first = std::max(a->first, b->first);
    const std::uint32_t last = std::min(a->second, b->second);
    if (first <= last) result.ranges_.emplace_back(first, last);
    if (a->second < b->second) {
      ++a;
    } else {
      ++b;
    }
  }
  return result;
}

bool CodePointSet::contains(std::uint32_t code_point) const {
  const auto range = std::lower_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](const Range& r, std::uint32_t c) { return r.second < c; });
  return range != ranges_.end() && range->first <= code_point;
}

GrammarBuilder::GrammarBuilder(const GrammarLimits& limits) : limits_(limits) {
  nodes_.push_back({.kind = GrammarNodeKind::kNothing});
  nodes_.push_back({.kind = GrammarNodeKind::kEmpty});
}

GrammarNodeId GrammarBuilder::add(const GrammarNode& node) {
  if (nodes_.size() >= limits_.max_nodes)
    throw GrammarRefused("the grammar has more than " + std::to_string(limits_.max_nodes) +
                         " parts");
  if (node.depth > limits_.max_depth)
    throw GrammarRefused("the grammar is nested deeper than " + std::to_string(limits_.max_depth) +
                         " levels");
  nodes_.push_back(node);
  return static_cast<GrammarNodeId>(nodes_.size() - 1);
}

GrammarNodeId GrammarBuilder::add(GrammarNodeKind kind, std::span<const GrammarNodeId> children,
                                  std::uint32_t min, std::uint32_t max) {
  GrammarNode node{.kind = kind,
                   .first = static_cast<std::uint32_t>(children_.size()),
                   .count = static_cast<std::uint32_t>(children.size()),
                   .min = min,
                   .max = max};
  if (children_.size() + children.size() > 4 * limits_.max_nodes)
    throw GrammarRefused("the grammar has more than " + std::to_string(4 * limits_.max_nodes) +
                         " references between its parts");
  for (const GrammarNodeId child : children) {
    node.is_regular = node.is_regular && nodes_[child].is_regular;
    node.depth =
        std::max<std::uint16_t>(node.depth, static_cast<std::uint16_t>(nodes_[child].depth + 1));
    children_.push_back(child);
  }
  return add(node);
}

GrammarNodeId GrammarBuilder::bytes(const ByteSet& set) {
  if (set.none()) return nothing();
  const bool single = set.count() == 1;
  GrammarNodeId& known = single ? single_bytes_[set._Find_first()] : node_of_set_[set];
  if (known != 0) return known;
  sets_.push_back(set);
  known =
      add({.kind = GrammarNodeKind::kBytes, .first = static_cast<std::uint32_t>(sets_.size() - 1)});
  return known;
}

GrammarNodeId GrammarBuilder::byte(unsigned char value) {
  if (single_bytes_[value] != 0) return single_bytes_[value];
  return bytes(ByteSet().set(value));
}

GrammarNodeId GrammarBuilder::literal(std::string_view text) {
  std::vector<GrammarNodeId> nodes;
  nodes.reserve(text.size());
  for (const char c : text) nodes.push_back(byte(static_cast<unsigned char>(c)));
  return sequence(nodes);
}

namespace {

struct Utf8 {
  std::array<unsigned char, 4> bytes{};
  std::size_t size = 0;
};

Utf8 encode_utf8(std::uint32_t c) {
  const auto byte = [](std::uint32_t value) { return static_cast<unsigned char>(value); };
  if (c < 0x80) return {{byte(c)}, 1};
  if (c < 0x800) return {{byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))}, 2};
  if (c < 0x10000)
    return {{byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))}, 3};
  return {{byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
           byte(0x80 | (c & 0x3F))},
          4};
}

}  // namespace

/// Splits each range until first and last differ only in bytes whose followers take every value.
GrammarNodeId GrammarBuilder::code_points(const CodePointSet& set) {
  static const CodePointSet kCharacters{{0, 0xD7FF}, {0xE000, CodePointSet::kMax}};
  std::vector<GrammarNodeId> alternatives;
  ByteSet ascii;
  std::vector<CodePointSet::Range> pending;
  const CodePointSet characters = set.intersection(kCharacters);
  for (const auto& range : characters.ranges()) {
    pending.assign(1, range);
    while (!pending.empty()) {
      auto [first, last] = pending.back();
      pending.pop_back();
      bool split = false;
      for (const std::uint32_t end : {0x7Fu, 0x7FFu, 0xFFFFu}) {  // one length
        if (first <= end && end < last) {
          pending.emplace_back(end + 1, last);
          last = end;
          split = true;
          break;
        }
      }
      if (split) {
        pending.emplace_back(first, last);
        continue;
      }
      if (last < 0x80) {
        ascii |= byte_range(static_cast<unsigned char>(first), static_cast<unsigned char>(last));
        continue;
      }
      for (int i = 1; i < 4 && !split; ++i) {
        const std::uint32_t low = (1u << 6 * i) - 1;  // the last i continuation bytes
        if ((first & ~low) == (last & ~low)) continue;
        if ((first & low) != 0) {
          pending.emplace_back((first | low) + 1, last);
          pending.emplace_back(first, first | low);
          split = true;
        } else if ((last & low) != low) {
          pending.emplace_back(last & ~low, last);
          pending.emplace_back(first, (last & ~low) - 1);
          split = true;
        }
      }
      if (split) continue;
      const Utf8 from = encode_utf8(first);
      const Utf8 to = encode_utf8(last);
      std::vector<GrammarNodeId> parts;
      for (std::size_t i = 0; i < from.size; ++i)
        parts.push_back(from.bytes[i] == to.bytes[i]
                            ? byte(from.bytes[i])
                            : bytes(byte_range(from.bytes[i], to.bytes[i])));
      alternatives.push_back(sequence(parts));
    }
  }
  if (ascii.any()) alternatives.push_back(bytes(ascii));
  return choice(alternatives);
}

GrammarNodeId GrammarBuilder::sequence(std::span<const GrammarNodeId> nodes) {
  std::vector<GrammarNodeId> parts;
  parts.reserve(nodes.size());
  for (const GrammarNodeId node : nodes) {
    if (node == nothing()) return nothing();
    if (node != empty()) parts.push_back(node);
  }
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts.front();
  return add(GrammarNodeKind::kSequence, parts);
}

GrammarNodeId GrammarBuilder::choice(std::span<const GrammarNodeId> nodes) {
  std::vector<GrammarNodeId> parts;
  parts.reserve(nodes.size());
  for (const GrammarNodeId node : nodes)
    if (node != nothing()) parts.push_back(node);
  if (parts.empty()) return nothing();
  if (parts.size() == 1) return parts.front();
  return add(GrammarNodeKind::kChoice, parts);
}

GrammarNodeId GrammarBuilder::repeat(GrammarNodeId node, std::uint32_t min, std::uint32_t max) {
  CHECK(min <= max, min, max);
  for (const std::uint32_t count : {min, max}) {
    if (count != kUnbounded && count > limits_.max_repetition)
      throw GrammarRefused("a repetition of " + std::to_string(count) + " is over the limit of " +
                           std::to_string(limits_.max_repetition));
  }
  if (max == 0 || node == empty()) return empty();
  if (node == nothing()) return min == 0 ? empty() : nothing();
  if (min == 1 && max == 1) return node;
  return add(GrammarNodeKind::kRepeat, std::span(&node, 1), min, max);
}

GrammarNodeId GrammarBuilder::intersection(GrammarNodeId a, GrammarNodeId b) {
  CHECK(nodes_[a].is_regular && nodes_[b].is_regular);
  if (a == nothing() || b == nothing()) return nothing();
  const std::array<GrammarNodeId, 2> both{a, b};
  return add(GrammarNodeKind::kIntersection, both);
}

GrammarNodeId GrammarBuilder::complement(GrammarNodeId node) {
  CHECK(nodes_[node].is_regular);
  return add(GrammarNodeKind::kComplement, std::span(&node, 1));
}

GrammarNodeId GrammarBuilder::multiple_of(std::uint32_t divisor) {
  CHECK(divisor > 0 && divisor <= std::numeric_limits<std::uint32_t>::max() / 16, divisor);
  return add({.kind = GrammarNodeKind::kMultiple, .max = divisor});
}

GrammarNodeId GrammarBuilder::unordered(const Unordered& items) {
  // Each child but those of `required` has the empty text: all have a text if the whole has one.
  std::vector<GrammarNodeId> children{items.separator, items.last, repeat(items.more, 0)};
  children.insert(children.end(), items.required.begin(), items.required.end());
  for (const GrammarNodeId one : items.optional) children.push_back(optional(one));
  const GrammarNodeId node = add(GrammarNodeKind::kUnordered, children, items.min, items.max);
  nodes_[node].is_regular = false;
  return node;
}

GrammarNodeId GrammarBuilder::rule(GrammarRuleId rule) {
  CHECK(rule < bodies_.size(), rule);
  return add({.kind = GrammarNodeKind::kRule, .is_regular = false, .first = rule});
}

GrammarRuleId GrammarBuilder::add_rule() {
  bodies_.push_back(nothing());
  return static_cast<GrammarRuleId>(bodies_.size() - 1);
}

}  // namespace troupe
