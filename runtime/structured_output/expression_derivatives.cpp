// Derivatives of expressions (Brzozowski, "Derivatives of regular expressions", JACM 1964), and
// what is decided with them.

#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_set>

#include "runtime/structured_output/expressions.hpp"

namespace troupe {

ExpressionId Expressions::derive_state(ExpressionId e, std::uint8_t byte_class) {
  const ExpressionId next = derive(e, byte_class);
  row_at(row_of_[e])[byte_class] = next;
  return next;
}

ExpressionId Expressions::derive(ExpressionId e, std::uint8_t c) {
  const Node& node = nodes_[e];
  if (row_of_[e] == kNoRow) {
    // What is large enough for a table of its own, wherever it occurs.
    const bool keep = node.kind == Kind::kRule || node.kind == Kind::kIntersection ||
                      node.kind == Kind::kUnordered || node.kind == Kind::kBehindOne ||
                      (node.kind == Kind::kChoice && node.b >= 3) ||
                      (node.kind == Kind::kRepeat && nodes_[node.a].kind != Kind::kBytes);
    if (!keep) return derive_uncached(e, c);
    add_row(e);
  }
  const ExpressionId known = row_at(row_of_[e])[c];
  if (known != kUnknown) return known;
  const ExpressionId result = derive_uncached(e, c);
  row_at(row_of_[e])[c] = result;
  return result;
}

ExpressionId Expressions::derive_uncached(ExpressionId e, std::uint8_t c) {
  const Depth guard(depth_);
  charge();
  const Node node = nodes_[e];
  switch (node.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return kNothing;
    case Kind::kBytes:
      return sets_[node.a].test(c) ? kEmpty : kNothing;
    case Kind::kSequence: {
      ExpressionId head = node.a;
      ExpressionId tail = node.b;
      ExpressionId result = sequence(derive(head, c), tail);
      if (!nodes_[head].nullable) return result;
      std::vector<ExpressionId> parts;
      for (;;) {
        if (result != kNothing) parts.push_back(result);
        if (!nodes_[head].nullable || tail == kEmpty) break;
        std::tie(head, tail) = head_and_tail(tail);
        result = sequence(derive(head, c), tail);
      }
      return choice(std::move(parts));
    }
    case Kind::kChoice: {
      std::vector<ExpressionId> parts;
      for (std::uint32_t i = 0; i < node.b; ++i) {
        const ExpressionId part = derive(children_[node.a + i], c);
        if (part != kNothing) parts.push_back(part);
      }
      if (parts.size() < 2) return parts.empty() ? kNothing : parts.front();
      return choice(std::move(parts));
    }
    case Kind::kIntersection:
      return without_empty(derive_intersection(e, c));
    case Kind::kComplement:
      return complement(derive(node.a, c));
    case Kind::kRepeat: {
      const ExpressionId one = derive(node.a, c);
      if (one == kNothing) return kNothing;
      const std::uint32_t max = node.max == kUnbounded ? kUnbounded : node.max - 1;
      return sequence(one, repeat(node.a, node.min == 0 ? 0 : node.min - 1, max));
    }
    case Kind::kMultiple: {
      const unsigned char byte = classes_.representative(c);
      if (byte == '-' || byte == '.') return e;
      if (byte < '0' || byte > '9') return kNothing;
      return multiple_of(node.max, (node.min * 10 + (byte - '0')) % node.max);
    }
    case Kind::kRule:
      return derive(body(node.a), c);
    case Kind::kNotEmpty:
      return derive(node.a, c);
    case Kind::kUnordered:
      return derive_unordered(e, c);
    case Kind::kBehindOne:
      return derive(items_behind(e), c);
  }
  return kNothing;
}

ExpressionId Expressions::derive_unordered(ExpressionId e, std::uint8_t c) {
  const std::uint32_t size = nodes_[e].b;
  std::vector<ExpressionId> parts;
  for (std::uint32_t item = kMoreItem; item < size; ++item) {
    const ExpressionId part = derive(children_[nodes_[e].a + item], c);
    if (part == kNothing) continue;
    const ExpressionId whole = sequence(part, behind_one(e, item));
    if (whole != kNothing) parts.push_back(whole);
  }
  return choice(std::move(parts));
}

ExpressionId Expressions::derive_intersection(ExpressionId e, std::uint8_t c) {
  const Node node = nodes_[e];
  std::vector<ExpressionId> parts;
  for (std::uint32_t i = 0; i < node.b; ++i) {
    // The parts come again in other intersections: each has a table of its own.
    const ExpressionId child = children_[node.a + i];
    ExpressionId part = row(child)[c];
    if (part == kUnknown) part = derive_state(child, c);
    if (part == kNothing) return kNothing;
    parts.push_back(part);
  }
  return make_intersection(std::move(parts));
}

bool Expressions::has_shortest_text(ExpressionId e) {
  std::vector<ExpressionId> parts(children(nodes_[e]).begin(), children(nodes_[e]).end());
  std::vector<ExpressionId> next(parts.size());
  std::size_t c = 0;  // the last step's class often fits again
  for (std::uint32_t left = nodes_[e].least_bytes; left > 0; --left) {
    bool found = false;
    for (std::size_t tried = 0; tried < classes_.size() && !found; ++tried) {
      if (tried > 0) c = (c + 1) % classes_.size();
      found = true;
      for (std::size_t i = 0; i < parts.size() && found; ++i) {
        next[i] = row(parts[i])[c];
        if (next[i] == kUnknown) next[i] = derive_state(parts[i], static_cast<std::uint8_t>(c));
        found = next[i] != kNothing && nodes_[next[i]].least_bytes < left;
      }
    }
    charge();
    if (!found) return false;
    parts.swap(next);
  }
  return true;
}

bool Expressions::surely_have_common_text(std::vector<ExpressionId> parts) {
  const ExpressionId e = make_intersection(std::move(parts));
  if (nodes_[e].kind != Kind::kIntersection) return e != kNothing;
  if (has_text_[e] < 0 && has_shortest_text(e)) has_text_[e] = 1;
  return has_text_[e] == 1;
}

/// Those nearest to an end first. A step that leads nearer is followed before its siblings are
/// looked at.
ExpressionId Expressions::without_empty(ExpressionId e) {
  if (nodes_[e].kind != Kind::kIntersection) return e;
  if (has_text_[e] >= 0) return has_text_[e] == 1 ? e : kNothing;
  const Depth guard(depth_);
  if (has_shortest_text(e)) {
    has_text_[e] = 1;
    return e;
  }
  struct Seen {
    ExpressionId id = 0;
    std::size_t from = 0;  ///< its predecessor
    std::size_t next_class = 0;
  };
  std::vector<Seen> seen{{.id = e}};
  using Entry = std::pair<std::uint32_t, std::size_t>;  // least bytes, index
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  queue.emplace(nodes_[e].least_bytes, 0);
  std::unordered_set<ExpressionId> queued{e};
  const auto mark_path = [&](std::size_t i) {
    for (;;) {
      has_text_[seen[i].id] = 1;
      if (i == 0) return;
      i = seen[i].from;
    }
  };
  while (!queue.empty()) {
    const auto [least, i] = queue.top();
    queue.pop();
    for (std::size_t c = seen[i].next_class; c < classes_.size(); ++c) {
      charge();
      const ExpressionId next = derive_intersection(seen[i].id, static_cast<std::uint8_t>(c));
      if (next == kNothing) continue;
      if (nodes_[next].kind != Kind::kIntersection || has_text_[next] == 1) {
        mark_path(i);
        return e;
      }
      if (has_text_[next] == 0 || !queued.insert(next).second) continue;
      if (seen.size() >= limits_.max_emptiness_steps)
        throw GrammarRefused(
            "an intersection (pattern with length or range, excluded names) has "
            "more than " +
            std::to_string(limits_.max_emptiness_steps) + " states");
      queue.emplace(nodes_[next].least_bytes, seen.size());
      seen.push_back({.id = next, .from = i});
      if (nodes_[next].least_bytes < least) {
        seen[i].next_class = c + 1;
        queue.emplace(least, i);
        break;
      }
    }
  }
  for (const Seen& one : seen) has_text_[one.id] = 0;
  return kNothing;
}

bool Expressions::contains(ExpressionId a, ExpressionId b) {
  std::vector<std::pair<ExpressionId, ExpressionId>> seen{{a, b}};
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen.size() > 64) return false;
    const auto [x, y] = seen[i];
    if (nullable(y) && !nullable(x)) return false;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      const ExpressionId next_y = derive(y, static_cast<std::uint8_t>(c));
      if (next_y == kNothing) continue;
      const ExpressionId next_x = derive(x, static_cast<std::uint8_t>(c));
      if (next_x == kNothing) return false;
      const std::pair next{next_x, next_y};
      if (std::find(seen.begin(), seen.end(), next) == seen.end()) seen.push_back(next);
    }
  }
  return true;
}

}  // namespace troupe
