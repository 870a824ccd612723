#include "runtime/structured_output/expressions.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

/// Calls within calls, so that no grammar overflows the stack of a thread.
constexpr int kMaxDepth = 4000;

std::uint64_t mix(std::uint64_t h, std::uint64_t value) {
  h ^= value + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
  return h * 0xFF51AFD7ED558CCDu;
}

}  // namespace

ByteClasses::ByteClasses(std::span<const ByteSet> sets) {
  std::array<std::uint32_t, 256> group{};
  std::array<std::uint32_t, 256> size{256};
  std::uint32_t num_groups = 1;
  for (const ByteSet& set : sets) {
    // Each group is split in what is in the set and what is not.
    std::array<std::uint32_t, 256> inside{};
    std::array<std::uint32_t, 256> split{};
    for (std::size_t b = set._Find_first(); b < 256; b = set._Find_next(b)) ++inside[group[b]];
    for (std::size_t b = set._Find_first(); b < 256; b = set._Find_next(b)) {
      const std::uint32_t old = group[b];
      if (inside[old] == size[old] && split[old] == 0) continue;
      if (split[old] == 0) {
        split[old] = num_groups++;
        size[split[old]] = inside[old];
        size[old] -= inside[old];
      }
      group[b] = split[old];
    }
    if (num_groups == 256) break;
  }
  for (std::size_t b = 0; b < 256; ++b) of_[b] = static_cast<std::uint8_t>(group[b]);
  representatives_.resize(num_groups);
  num_bytes_.resize(num_groups);
  for (std::size_t b = 256; b-- > 0;) {
    representatives_[of_[b]] = static_cast<unsigned char>(b);
    ++num_bytes_[of_[b]];
  }
}

std::bitset<256> ByteClasses::of(const ByteSet& set) const {
  std::bitset<256> result;
  for (std::size_t c = 0; c < size(); ++c)
    if (set.test(representatives_[c])) result.set(c);
  return result;
}

Expressions::Depth::Depth(int& depth) : depth_(depth) {
  if (++depth_ > kMaxDepth) {
    --depth_;
    throw GrammarRefused("the grammar is nested deeper than " + std::to_string(kMaxDepth) +
                         " expressions");
  }
}

Expressions::Expressions(ByteClasses classes, const GrammarLimits& limits)
    : classes_(std::move(classes)), limits_(limits) {
  table_.resize(1024);
  begin_call();
  // Their numbers are fixed.
  for (const Kind kind : {Kind::kNothing, Kind::kEmpty}) {
    nodes_.push_back({.kind = kind, .nullable = kind == Kind::kEmpty});
    row_of_.push_back(kNoRow);
    has_text_.push_back(kind == Kind::kEmpty);
  }
  ByteSet all;
  all.set();
  nodes_.push_back({.kind = Kind::kRepeat,
                    .nullable = true,
                    .is_finite = false,
                    .text_bits = kManyTexts,
                    .a = kAnyByte,
                    .max = kUnbounded});
  row_of_.push_back(kNoRow);
  has_text_.push_back(1);
  const ExpressionId any_byte = bytes(all);
  CHECK(any_byte == kAnyByte, any_byte);
}

std::size_t Expressions::num_bytes() const noexcept {
  return nodes_.size() * (sizeof(Node) + sizeof(std::uint32_t) + 1) +
         children_.size() * sizeof(ExpressionId) + sets_.size() * sizeof(sets_[0]) +
         table_.size() * sizeof(std::uint32_t) + num_rows_ * classes_.size() * sizeof(ExpressionId);
}

std::size_t Expressions::hash(const Node& node, std::span<const ExpressionId> children) const {
  std::uint64_t h = static_cast<std::uint64_t>(node.kind);
  if (children.empty()) h = mix(h, std::uint64_t{node.a} << 32 | node.b);
  h = mix(h, std::uint64_t{node.min} << 32 | node.max);
  for (const ExpressionId child : children) h = mix(h, child);
  return h ^ h >> 32;
}

bool Expressions::equal(const Node& a, std::span<const ExpressionId> a_children,
                        const Node& b) const {
  if (a.kind != b.kind || a.min != b.min || a.max != b.max) return false;
  if (!a_children.empty()) return std::ranges::equal(a_children, children(b));
  return a.a == b.a && a.b == b.b;
}

void Expressions::grow_table() {
  std::vector<std::uint32_t> old(table_.size() * 2);
  old.swap(table_);
  const std::size_t mask = table_.size() - 1;
  for (const std::uint32_t id : old) {
    if (id == 0) continue;
    const Node& node = nodes_[id];
    const bool has_children = node.kind == Kind::kChoice || node.kind == Kind::kIntersection ||
                              node.kind == Kind::kUnordered;
    std::size_t i =
        hash(node, has_children ? children(node) : std::span<const ExpressionId>()) & mask;
    while (table_[i] != 0) i = (i + 1) & mask;
    table_[i] = id;
  }
}

std::uint32_t Expressions::least_bytes(const Node& node,
                                       std::span<const ExpressionId> children) const {
  if (node.nullable) return 0;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t least = 1;
  switch (node.kind) {
    case Kind::kSequence:
      least = std::uint64_t{nodes_[node.a].least_bytes} + nodes_[node.b].least_bytes;
      break;
    case Kind::kChoice:
      least = kMost;
      for (const ExpressionId child : children)
        least = std::min<std::uint64_t>(least, nodes_[child].least_bytes);
      break;
    case Kind::kIntersection:
      for (const ExpressionId child : children)
        least = std::max<std::uint64_t>(least, nodes_[child].least_bytes);
      break;
    case Kind::kRepeat:
      least = std::uint64_t{node.min} * nodes_[node.a].least_bytes;
      break;
    default:
      break;
  }
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(least, 1, kMost));
}

std::uint8_t Expressions::text_bits(const Node& node,
                                    std::span<const ExpressionId> children) const {
  if (!node.is_finite) return kManyTexts;
  const auto bits_of = [&](ExpressionId e) -> std::uint64_t { return nodes_[e].text_bits; };
  const auto bits_for = [](std::uint64_t count) -> std::uint64_t {
    return static_cast<std::uint64_t>(std::bit_width(count - 1));  // rounded up
  };
  std::uint64_t bits = 0;
  switch (node.kind) {
    case Kind::kBytes: {
      std::size_t count = 0;
      for (std::size_t c = 0; c < classes_.size(); ++c)
        if (sets_[node.a].test(c)) count += classes_.num_bytes(c);
      bits = bits_for(count);
      break;
    }
    case Kind::kSequence:
      bits = bits_of(node.a) + bits_of(node.b);
      break;
    case Kind::kChoice:
      for (const ExpressionId child : children) bits = std::max(bits, bits_of(child));
      bits += bits_for(children.size());
      break;
    case Kind::kIntersection:
      bits = kManyTexts;
      for (const ExpressionId child : children) bits = std::min(bits, bits_of(child));
      break;
    case Kind::kRepeat:
      bits = bits_of(node.a) * node.max + bits_for(std::uint64_t{node.max} - node.min + 1);
      break;
    case Kind::kNotEmpty:
      bits = bits_of(node.a);
      break;
    default:
      break;
  }
  return static_cast<std::uint8_t>(std::min<std::uint64_t>(bits, kManyTexts));
}

ExpressionId Expressions::intern(Node node, std::span<const ExpressionId> children) {
  const std::size_t mask = table_.size() - 1;
  std::size_t i = hash(node, children) & mask;
  for (; table_[i] != 0; i = (i + 1) & mask)
    if (equal(node, children, nodes_[table_[i]])) return table_[i];
  if (num_bytes() > limits_.max_bytes)
    throw GrammarRefused("the grammar takes more than " + std::to_string(limits_.max_bytes) +
                         " bytes");
  const auto id = static_cast<ExpressionId>(nodes_.size());
  node.least_bytes = least_bytes(node, children);
  node.text_bits = text_bits(node, children);
  if (!children.empty()) {
    node.a = static_cast<std::uint32_t>(children_.size());
    node.b = static_cast<std::uint32_t>(children.size());
    children_.insert(children_.end(), children.begin(), children.end());
  }
  nodes_.push_back(node);
  row_of_.push_back(kNoRow);
  has_text_.push_back(node.kind == Kind::kIntersection && !node.nullable ? -1 : 1);
  table_[i] = id;
  if (nodes_.size() * 2 > table_.size()) grow_table();
  return id;
}

void Expressions::add_row(ExpressionId e) {
  if (num_rows_ % kRowsPerChunk == 0) {
    if (num_bytes() > limits_.max_bytes)
      throw GrammarRefused("the grammar takes more than " + std::to_string(limits_.max_bytes) +
                           " bytes");
    rows_.emplace_back(kRowsPerChunk * classes_.size(), kUnknown);
  }
  row_of_[e] = num_rows_++;
}

void Expressions::charge() {
  if (steps_left_ == 0)
    throw GrammarRefused("the grammar takes more than " + std::to_string(limits_.max_steps) +
                         " steps for one token");
  --steps_left_;
}

// ---- Making expressions ----------------------------------------------------------------------

ExpressionId Expressions::bytes(const ByteSet& set) { return bytes_of_classes(classes_.of(set)); }

ExpressionId Expressions::bytes_of_classes(const std::bitset<256>& classes) {
  if (classes.none()) return kNothing;
  // There are few sets, and unions of them that derivatives make.
  const auto known = std::find(sets_.begin(), sets_.end(), classes);
  if (known == sets_.end()) {
    sets_.push_back(classes);
    return intern({.kind = Kind::kBytes, .a = static_cast<std::uint32_t>(sets_.size() - 1)});
  }
  return intern({.kind = Kind::kBytes, .a = static_cast<std::uint32_t>(known - sets_.begin())});
}

ExpressionId Expressions::sequence(ExpressionId a, ExpressionId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  std::vector<ExpressionId> heads;
  while (nodes_[a].kind == Kind::kSequence) {
    heads.push_back(nodes_[a].a);
    a = nodes_[a].b;
  }
  for (;;) {
    b = intern({.kind = Kind::kSequence,
                .nullable = nodes_[a].nullable && nodes_[b].nullable,
                .is_finite = nodes_[a].is_finite && nodes_[b].is_finite,
                .a = a,
                .b = b});
    if (heads.empty()) return b;
    a = heads.back();
    heads.pop_back();
  }
}

std::pair<ExpressionId, ExpressionId> Expressions::head_and_tail(ExpressionId e) const {
  const Node& node = nodes_[e];
  if (node.kind == Kind::kSequence) return {node.a, node.b};
  return {e, kEmpty};
}

bool Expressions::merge(std::vector<ExpressionId>& parts) {
  struct Part {
    ExpressionId head;
    ExpressionId tail;
  };
  std::vector<Part> split;
  split.reserve(parts.size());
  for (const ExpressionId part : parts) {
    const auto [head, tail] = head_and_tail(part);
    split.push_back({head, tail});
  }
  bool merged = false;
  // x k | x l = x (k | l). Not for single bytes: deriving by them joins what follows, and a list of
  // long texts would be joined to its end for nothing.
  std::ranges::sort(split, [](const Part& x, const Part& y) {
    return x.head != y.head ? x.head < y.head : x.tail < y.tail;
  });
  std::vector<Part> joined;
  for (std::size_t i = 0; i < split.size();) {
    std::size_t end = i + 1;
    const Kind kind = nodes_[split[i].head].kind;
    if (kind != Kind::kBytes && kind != Kind::kEmpty)
      while (end < split.size() && split[end].head == split[i].head) ++end;
    if (end == i + 1) {
      joined.push_back(split[i]);
    } else {
      std::vector<ExpressionId> tails;
      for (std::size_t j = i; j < end; ++j) tails.push_back(split[j].tail);
      joined.push_back({split[i].head, choice(std::move(tails))});
      merged = true;
    }
    i = end;
  }
  // [a] k | [b] k = [ab] k, and x{1,3} k | x{2,5} k = x{1,5} k.
  std::ranges::sort(joined, [](const Part& x, const Part& y) {
    return x.tail != y.tail ? x.tail < y.tail : x.head < y.head;
  });
  std::vector<Part> result;
  for (const Part& part : joined) {
    const Node head = nodes_[part.head];
    bool is_new = true;
    for (auto other = result.rbegin(); other != result.rend() && other->tail == part.tail;
         ++other) {
      const Node with = nodes_[other->head];
      if (head.kind == Kind::kBytes && with.kind == Kind::kBytes) {
        const std::bitset<256> both = sets_[head.a] | sets_[with.a];
        const auto known = std::find(sets_.begin(), sets_.end(), both);
        const auto index = static_cast<std::uint32_t>(known - sets_.begin());
        if (known == sets_.end()) sets_.push_back(both);
        other->head = intern({.kind = Kind::kBytes, .a = index});
        is_new = false;
      } else if (head.kind == Kind::kRepeat && with.kind == Kind::kRepeat && head.a == with.a &&
                 std::uint64_t{std::max(head.min, with.min)} <=
                     std::uint64_t{std::min(head.max, with.max)} + 1) {
        other->head = repeat(head.a, std::min(head.min, with.min), std::max(head.max, with.max));
        is_new = false;
      }
      if (!is_new) break;
    }
    if (is_new) {
      result.push_back(part);
    } else {
      merged = true;
    }
  }
  if (!merged) return false;
  parts.clear();
  for (const Part& part : result) parts.push_back(sequence(part.head, part.tail));
  return true;
}

ExpressionId Expressions::choice(ExpressionId a, ExpressionId b) {
  if (a == b || b == kNothing) return a;
  if (a == kNothing) return b;
  return choice(std::vector<ExpressionId>{a, b});
}

ExpressionId Expressions::choice(std::vector<ExpressionId> parts) {
  const Depth guard(depth_);
  do {
    std::vector<ExpressionId> flat;
    flat.reserve(parts.size());
    for (const ExpressionId part : parts) {
      if (part == kNothing) continue;
      if (part == kAnything) return kAnything;
      const Node& node = nodes_[part];
      if (node.kind == Kind::kChoice) {
        const auto inner = children(node);
        flat.insert(flat.end(), inner.begin(), inner.end());
      } else {
        flat.push_back(part);
      }
    }
    std::ranges::sort(flat);
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    parts = std::move(flat);
    if (parts.empty()) return kNothing;
    if (parts.size() == 1) return parts.front();
  } while (merge(parts));
  bool nullable = false;
  bool is_finite = true;
  for (const ExpressionId part : parts) {
    nullable = nullable || nodes_[part].nullable;
    is_finite = is_finite && nodes_[part].is_finite;
  }
  // The empty text beside what has it already.
  if (parts.front() == kEmpty) {
    const bool twice = std::any_of(parts.begin() + 1, parts.end(),
                                   [&](ExpressionId part) { return nodes_[part].nullable; });
    if (twice) parts.erase(parts.begin());
    if (parts.size() == 1) return parts.front();
  }
  return intern({.kind = Kind::kChoice, .nullable = nullable, .is_finite = is_finite}, parts);
}

ExpressionId Expressions::make_intersection(std::vector<ExpressionId> parts) {
  std::vector<ExpressionId> flat;
  bool only_empty = false;
  for (const ExpressionId part : parts) {
    if (part == kNothing) return kNothing;
    if (part == kAnything) continue;
    if (part == kEmpty) only_empty = true;
    const Node& node = nodes_[part];
    if (node.kind == Kind::kIntersection) {
      const auto inner = children(node);
      flat.insert(flat.end(), inner.begin(), inner.end());
    } else {
      flat.push_back(part);
    }
  }
  const bool nullable =
      std::ranges::all_of(flat, [&](ExpressionId part) { return nodes_[part].nullable; });
  if (only_empty) return nullable ? kEmpty : kNothing;
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kAnything;
  if (flat.size() == 1) return flat.front();
  const bool is_finite =
      std::ranges::any_of(flat, [&](ExpressionId part) { return nodes_[part].is_finite; });
  return intern({.kind = Kind::kIntersection, .nullable = nullable, .is_finite = is_finite}, flat);
}

ExpressionId Expressions::intersection(ExpressionId a, ExpressionId b) {
  return without_empty(make_intersection({a, b}));
}

ExpressionId Expressions::complement(ExpressionId a) {
  if (a == kNothing) return kAnything;
  if (a == kAnything) return kNothing;
  const Node node = nodes_[a];
  if (node.kind == Kind::kComplement) return node.a;
  return intern(
      {.kind = Kind::kComplement, .nullable = !node.nullable, .is_finite = false, .a = a});
}

ExpressionId Expressions::repeat(ExpressionId a, std::uint32_t min, std::uint32_t max) {
  if (max == 0 || a == kEmpty) return kEmpty;
  if (a == kNothing) return min == 0 ? kEmpty : kNothing;
  if (nodes_[a].nullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (a == kAnyByte && min == 0 && max == kUnbounded) return kAnything;
  const Node& node = nodes_[a];
  if (node.kind == Kind::kRepeat && node.min == 0 && node.max == kUnbounded && min <= 1) return a;
  return intern({.kind = Kind::kRepeat,
                 .nullable = min == 0,
                 .is_finite = node.is_finite && max != kUnbounded,
                 .a = a,
                 .min = min,
                 .max = max});
}

ExpressionId Expressions::multiple_of(std::uint32_t divisor, std::uint32_t remainder) {
  return intern({.kind = Kind::kMultiple,
                 .nullable = remainder == 0,
                 .is_finite = false,
                 .min = remainder,
                 .max = divisor});
}

ExpressionId Expressions::rule(std::uint32_t rule, bool nullable) {
  return intern({.kind = Kind::kRule, .nullable = nullable, .is_finite = false, .a = rule});
}

ExpressionId Expressions::not_empty(ExpressionId a) {
  if (!nodes_[a].nullable) return a;
  if (a == kEmpty) return kNothing;
  return intern({.kind = Kind::kNotEmpty, .is_finite = nodes_[a].is_finite, .a = a});
}

ExpressionId Expressions::unordered(const Unordered& items) {
  const auto num_required = static_cast<std::uint32_t>(items.required.size());
  const std::uint64_t num_items = std::uint64_t{num_required} + items.optional.size();
  const std::uint32_t min = std::max({items.min, num_required, 1u});
  // Without `more` there are no others to count.
  const std::uint32_t max = items.more == kNothing && items.max >= num_items
                                ? static_cast<std::uint32_t>(num_items)
                                : items.max;
  if (min > max || std::ranges::find(items.required, kNothing) != items.required.end())
    return kNothing;
  std::vector<ExpressionId> parts{num_required, items.separator, items.last, items.more};
  parts.insert(parts.end(), items.required.begin(), items.required.end());
  parts.insert(parts.end(), items.optional.begin(), items.optional.end());
  return intern({.kind = Kind::kUnordered, .is_finite = false, .min = min, .max = max}, parts);
}

/// What is there to come behind an item.
struct Expressions::ItemsLeft {
  std::uint32_t num_required = 0;
  std::uint32_t min = 0;
  std::uint32_t max = kUnbounded;
  bool may_go_on = false;

  [[nodiscard]] bool may_end() const { return num_required == 0 && min == 0; }
};

Expressions::ItemsLeft Expressions::items_left(const Node& node, std::uint32_t item) const {
  const auto parts = children(node);
  const std::uint32_t num_required = parts[0];
  const std::size_t num_items = parts.size() - kFirstItem - (item == kMoreItem ? 0 : 1);
  ItemsLeft left{.num_required = num_required,
                 .min = node.min - 1,
                 .max = node.max == kUnbounded ? kUnbounded : node.max - 1};
  if (item != kMoreItem && item < kFirstItem + num_required) --left.num_required;
  const std::uint64_t most =
      parts[kMoreItem] != kNothing ? left.max : std::min<std::uint64_t>(left.max, num_items);
  left.may_go_on = most >= std::max({left.num_required, left.min, 1u});
  return left;
}

ExpressionId Expressions::behind_one(ExpressionId e, std::uint32_t item) {
  const Node node = nodes_[e];
  const ItemsLeft left = items_left(node, item);
  const ExpressionId last = children(node)[2];
  if (!left.may_go_on) return left.may_end() ? last : kNothing;
  return intern({.kind = Kind::kBehindOne,
                 .nullable = left.may_end() && nodes_[last].nullable,
                 .is_finite = false,
                 .a = e,
                 .b = item});
}

ExpressionId Expressions::items_behind(ExpressionId e) {
  const auto known = items_behind_.find(e);
  if (known != items_behind_.end()) return known->second;
  const Node& node = nodes_[nodes_[e].a];
  const std::uint32_t item = nodes_[e].b;
  const auto parts = children(node);
  const ItemsLeft left = items_left(node, item);
  Unordered items{.separator = parts[1],
                  .last = parts[2],
                  .more = parts[kMoreItem],
                  .required = {},
                  .optional = {},
                  .min = left.min,
                  .max = left.max};
  for (std::uint32_t i = kFirstItem; i < parts.size(); ++i)
    if (i != item)
      (i < kFirstItem + parts[0] ? items.required : items.optional).push_back(parts[i]);
  const ExpressionId more = sequence(items.separator, unordered(items));
  const ExpressionId result = left.may_end() ? choice(items.last, more) : more;
  items_behind_.emplace(e, result);
  return result;
}

// ---- Expressions from elsewhere --------------------------------------------------------------

ExpressionId Expressions::import(const Expressions& other, ExpressionId e,
                                 std::unordered_map<ExpressionId, ExpressionId>& known) {
  for (const ExpressionId fixed : {kNothing, kEmpty, kAnything, kAnyByte})
    known.emplace(fixed, fixed);
  // Parts first; states are long sequences, too long to recurse.
  std::vector<ExpressionId> pending{e};
  while (!pending.empty()) {
    const ExpressionId next = pending.back();
    const Node& node = other.node(next);
    const std::size_t num_pending = pending.size();
    const auto need = [&](ExpressionId part) {
      if (!known.contains(part)) pending.push_back(part);
    };
    if (!known.contains(next)) {
      if (node.kind == Kind::kChoice || node.kind == Kind::kIntersection) {
        for (const ExpressionId part : other.children(node)) need(part);
      } else if (node.kind == Kind::kUnordered) {
        for (const ExpressionId part : other.children(node).subspan(1)) need(part);
      } else if (node.kind == Kind::kSequence) {
        need(node.a);
        need(node.b);
      } else if (node.kind == Kind::kComplement || node.kind == Kind::kRepeat ||
                 node.kind == Kind::kNotEmpty || node.kind == Kind::kBehindOne) {
        need(node.a);
      }
      if (pending.size() > num_pending) continue;
      known.emplace(next, import_node(other, node, known));
    }
    pending.pop_back();
  }
  return known.at(e);
}

/// Pre: the node's parts are known.
ExpressionId Expressions::import_node(const Expressions& other, const Node& node,
                                      const std::unordered_map<ExpressionId, ExpressionId>& known) {
  std::vector<ExpressionId> parts;
  if (node.kind == Kind::kChoice || node.kind == Kind::kIntersection)
    for (const ExpressionId part : other.children(node)) parts.push_back(known.at(part));
  if (node.kind == Kind::kUnordered) {
    parts.push_back(other.children(node)[0]);  // a number
    for (const ExpressionId part : other.children(node).subspan(1)) parts.push_back(known.at(part));
  }
  switch (node.kind) {
    case Kind::kNothing:
      return kNothing;
    case Kind::kEmpty:
      return kEmpty;
    case Kind::kBytes:
      return bytes_of_classes(other.sets_[node.a]);
    case Kind::kSequence:
      return sequence(known.at(node.a), known.at(node.b));
    case Kind::kChoice:
      return choice(std::move(parts));
    case Kind::kIntersection:
      return make_intersection(std::move(parts));
    case Kind::kComplement:
      return complement(known.at(node.a));
    case Kind::kRepeat:
      return repeat(known.at(node.a), node.min, node.max);
    case Kind::kMultiple:
      return multiple_of(node.max, node.min);
    case Kind::kRule:
      return rule(node.a, node.nullable);
    case Kind::kNotEmpty:
      return not_empty(known.at(node.a));
    case Kind::kUnordered:
      return intern({.kind = node.kind, .is_finite = false, .min = node.min, .max = node.max},
                    parts);
    case Kind::kBehindOne:
      return behind_one(known.at(node.a), node.b);
  }
  return kNothing;
}

}  // namespace troupe
