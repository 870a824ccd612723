#pragma once
// A context-free grammar over bytes as the front ends write it down: JSON Schema, regular
// expressions, EBNF.

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/structured_output/limits.hpp"

namespace troupe {

using ByteSet = std::bitset<256>;
/// Inclusive.
[[nodiscard]] ByteSet byte_range(unsigned char first, unsigned char last);

/// Sorted, disjoint, inclusive ranges of code points.
class CodePointSet {
 public:
  using Range = std::pair<std::uint32_t, std::uint32_t>;
  static constexpr std::uint32_t kMax = 0x10FFFF;

  CodePointSet() = default;
  CodePointSet(std::initializer_list<Range> ranges);
  void add(std::uint32_t first, std::uint32_t last);
  void add(const CodePointSet& other);
  [[nodiscard]] CodePointSet complement() const;
  [[nodiscard]] CodePointSet intersection(const CodePointSet& other) const;
  [[nodiscard]] bool contains(std::uint32_t code_point) const;
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] const std::vector<Range>& ranges() const noexcept { return ranges_; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

enum class GrammarNodeKind : std::uint8_t {
  kNothing,       ///< no text at all
  kEmpty,         ///< the empty text
  kBytes,         ///< one byte of a set
  kSequence,      ///< one after the other
  kChoice,        ///< any of them
  kRepeat,        ///< min to max times
  kIntersection,  ///< both at once; regular
  kComplement,    ///< every text of bytes that it is not; regular
  kMultiple,      ///< the digits of a multiple of max; '-' and '.' are passed over
  kUnordered,     ///< the children of GrammarBuilder::unordered; not regular
  kRule,
};

using GrammarNodeId = std::uint32_t;
using GrammarRuleId = std::uint32_t;

struct GrammarNode {
  GrammarNodeKind kind = GrammarNodeKind::kNothing;
  bool is_regular = true;
  std::uint16_t depth = 0;
  std::uint32_t first = 0;  ///< child, byte set or rule; of children() where there are several
  std::uint32_t count = 0;
  std::uint32_t min = 0;
  std::uint32_t max = 0;
};

/// Holds nodes and rules; the first rule is the start. Each function throws GrammarRefused over a
/// limit. Nodes may be used any number of times.
class GrammarBuilder {
 public:
  static constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();

  explicit GrammarBuilder(const GrammarLimits& limits = {});

  [[nodiscard]] GrammarNodeId nothing() const noexcept { return 0; }
  [[nodiscard]] GrammarNodeId empty() const noexcept { return 1; }
  GrammarNodeId bytes(const ByteSet& set);
  GrammarNodeId byte(unsigned char value);
  GrammarNodeId literal(std::string_view text);
  /// A character of the set in UTF-8. Surrogates are no characters.
  GrammarNodeId code_points(const CodePointSet& set);
  GrammarNodeId sequence(std::span<const GrammarNodeId> nodes);
  GrammarNodeId sequence(std::initializer_list<GrammarNodeId> nodes) {
    return sequence(std::span(nodes.begin(), nodes.size()));
  }
  GrammarNodeId choice(std::span<const GrammarNodeId> nodes);
  GrammarNodeId choice(std::initializer_list<GrammarNodeId> nodes) {
    return choice(std::span(nodes.begin(), nodes.size()));
  }
  GrammarNodeId optional(GrammarNodeId node) { return repeat(node, 0, 1); }
  GrammarNodeId repeat(GrammarNodeId node, std::uint32_t min, std::uint32_t max = kUnbounded);
  GrammarNodeId intersection(GrammarNodeId a, GrammarNodeId b);
  GrammarNodeId complement(GrammarNodeId node);
  GrammarNodeId multiple_of(std::uint32_t divisor);
  /// What may come in any order: `required` ones once each, `optional` ones at most once, `more`
  /// any number of times (nothing(): never); min to max of them together, at least one.
  struct Unordered {
    GrammarNodeId separator = 0;  ///< between two; not nullable
    GrammarNodeId last = 0;       ///< behind the last one
    GrammarNodeId more = 0;
    std::vector<GrammarNodeId> required;  ///< not nullable, as `optional` and `more`
    std::vector<GrammarNodeId> optional;
    std::uint32_t min = 1;
    std::uint32_t max = kUnbounded;
  };
  GrammarNodeId unordered(const Unordered& items);
  GrammarNodeId rule(GrammarRuleId rule);
  GrammarRuleId add_rule();
  void set_body(GrammarRuleId rule, GrammarNodeId body) { bodies_[rule] = body; }

  [[nodiscard]] const GrammarLimits& limits() const noexcept { return limits_; }
  [[nodiscard]] const std::vector<GrammarNode>& nodes() const noexcept { return nodes_; }
  [[nodiscard]] const std::vector<GrammarNodeId>& bodies() const noexcept { return bodies_; }
  [[nodiscard]] const std::vector<ByteSet>& sets() const noexcept { return sets_; }
  /// Of a sequence, choice, intersection; one of a repetition or a complement.
  [[nodiscard]] std::span<const GrammarNodeId> children(const GrammarNode& node) const {
    return std::span(children_).subspan(node.first, node.count);
  }

 private:
  GrammarNodeId add(GrammarNodeKind kind, std::span<const GrammarNodeId> children,
                    std::uint32_t min = 0, std::uint32_t max = 0);
  GrammarNodeId add(const GrammarNode& node);

  GrammarLimits limits_;
  std::vector<GrammarNode> nodes_;
  std::vector<GrammarNodeId> children_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, GrammarNodeId> node_of_set_;
  std::vector<GrammarNodeId> bodies_;
  std::array<GrammarNodeId, 256> single_bytes_{};
};

}  // namespace troupe
