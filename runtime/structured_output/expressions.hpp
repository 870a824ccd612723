#pragma once
// Grammars as expressions that are derived by bytes.
//
// The derivative of an expression by a byte is what may follow that byte (Brzozowski, Derivatives
// of Regular Expressions, 1964; for context-free grammars: Might et al., Parsing with Derivatives,
// 2011). Equal expressions are one object, and derivatives are remembered: a parser's state is one
// number, and a byte that was seen in it before is one look into a table. The stack of a pushdown
// automaton is here the right spine of sequences; alternatives that begin alike share their
// beginning, so that ambiguity costs no copies of stacks.

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/structured_output/grammar_builder.hpp"
#include "runtime/structured_output/limits.hpp"

namespace troupe {

using ExpressionId = std::uint32_t;

/// Bytes that no set of the grammar tells apart are one class.
class ByteClasses {
 public:
  explicit ByteClasses(std::span<const ByteSet> sets);
  [[nodiscard]] std::size_t size() const noexcept { return representatives_.size(); }
  [[nodiscard]] std::uint8_t of(unsigned char byte) const noexcept { return of_[byte]; }
  [[nodiscard]] unsigned char representative(std::size_t c) const { return representatives_[c]; }
  [[nodiscard]] std::size_t num_bytes(std::size_t c) const { return num_bytes_[c]; }
  /// Pre: the set is a union of classes.
  [[nodiscard]] std::bitset<256> of(const ByteSet& set) const;

 private:
  std::array<std::uint8_t, 256> of_{};
  std::vector<unsigned char> representatives_;
  std::vector<std::uint16_t> num_bytes_;
};

class Expressions;

/// Makes the bodies of a grammar's rules.
class RuleBodies {
 public:
  RuleBodies() = default;
  RuleBodies(const RuleBodies&) = delete;
  RuleBodies& operator=(const RuleBodies&) = delete;
  virtual ~RuleBodies() = default;
  /// Throws GrammarRefused.
  virtual ExpressionId make_body(Expressions& expressions, std::uint32_t rule) = 0;
};

/// Owns all expressions of one grammar. Invariants: no two are alike; none but kNothing stands for
/// no text at all, as far as that can be told without following rules (those that have no text are
/// kNothing from the start). Each function may throw GrammarRefused, where a limit is reached; what
/// is there stays as it is. Not thread safe.
class Expressions {
 public:
  static constexpr ExpressionId kNothing = 0;   ///< no text
  static constexpr ExpressionId kEmpty = 1;     ///< the empty text
  static constexpr ExpressionId kAnything = 2;  ///< every text of bytes
  static constexpr ExpressionId kAnyByte = 3;
  static constexpr ExpressionId kUnknown = std::numeric_limits<ExpressionId>::max();
  static constexpr std::uint32_t kUnbounded = GrammarBuilder::kUnbounded;
  static constexpr std::uint8_t kManyTexts = 255;  ///< or infinitely many

  enum class Kind : std::uint8_t {
    kNothing,
    kEmpty,
    kBytes,         ///< a: set
    kSequence,      ///< a, which is no sequence, then b
    kChoice,        ///< count children from a
    kIntersection,  ///< count children from a
    kComplement,    ///< of a
    kRepeat,        ///< a, min to max times
    kMultiple,      ///< digits that make a remainder of 0; so far it is min, the divisor max
    kRule,          ///< the rule's number is a
    kNotEmpty,      ///< a without the empty text
    kUnordered,     ///< what unordered() makes: count children from a, the first one no expression
    kBehindOne,     ///< what follows, in a, the child that b says
  };
  struct Node {
    Kind kind = Kind::kNothing;
    bool nullable = false;          ///< the empty text is one of its texts
    bool is_finite = true;          ///< it has finitely many texts, as far as that is certain
    std::uint8_t text_bits = 0;     ///< it has at most 2^text_bits texts, unless it is kManyTexts
    std::uint32_t least_bytes = 0;  ///< each of its texts has as many; 0 only if it is nullable
    std::uint32_t a = 0;
    std::uint32_t b = 0;  ///< or the number of children
    std::uint32_t min = 0;
    std::uint32_t max = 0;
  };

  Expressions(ByteClasses classes, const GrammarLimits& limits);

  ExpressionId bytes(const ByteSet& set);
  ExpressionId sequence(ExpressionId a, ExpressionId b);
  ExpressionId choice(std::vector<ExpressionId> parts);
  ExpressionId choice(ExpressionId a, ExpressionId b);
  /// kNothing if they have no text in common. Pre: both are regular.
  ExpressionId intersection(ExpressionId a, ExpressionId b);
  /// True: they have a text in common. False: not known.
  bool surely_have_common_text(std::vector<ExpressionId> parts);
  ExpressionId complement(ExpressionId a);
  ExpressionId repeat(ExpressionId a, std::uint32_t min, std::uint32_t max);
  ExpressionId multiple_of(std::uint32_t divisor, std::uint32_t remainder = 0);
  ExpressionId rule(std::uint32_t rule, bool nullable);
  ExpressionId not_empty(ExpressionId a);
  /// As GrammarBuilder::Unordered. Each way through the items makes expressions of its own, when a
  /// parser takes it.
  struct Unordered {
    ExpressionId separator = kEmpty;
    ExpressionId last = kEmpty;
    ExpressionId more = kNothing;
    std::vector<ExpressionId> required;
    std::vector<ExpressionId> optional;
    std::uint32_t min = 1;
    std::uint32_t max = kUnbounded;
  };
  ExpressionId unordered(const Unordered& items);

  /// An expression of another one of these made here; `known` keeps what has been made so far. Pre:
  /// they have the same classes and rules.
  ExpressionId import(const Expressions& other, ExpressionId e,
                      std::unordered_map<ExpressionId, ExpressionId>& known);

  /// What rules stand for. Pre: no rule begins with itself.
  void set_bodies(std::vector<ExpressionId> bodies) { bodies_ = std::move(bodies); }
  /// The same, each made when it is first needed.
  void set_bodies(std::size_t num_rules, std::unique_ptr<RuleBodies> bodies) {
    bodies_.assign(num_rules, kUnknown);
    make_bodies_ = std::move(bodies);
  }
  ExpressionId body(std::uint32_t rule) {
    if (bodies_[rule] == kUnknown) bodies_[rule] = make_bodies_->make_body(*this, rule);
    return bodies_[rule];
  }

  /// What may follow the byte.
  ExpressionId step(ExpressionId e, unsigned char byte) {
    const ExpressionId* const known = row(e);
    const ExpressionId next = known[classes_.of(byte)];
    return next != kUnknown ? next : derive_state(e, classes_.of(byte));
  }
  /// The results of step() for each class of bytes; kUnknown where step() has not been called. It
  /// stays where it is.
  const ExpressionId* row(ExpressionId e) {
    if (row_of_[e] == kNoRow) add_row(e);
    return row_at(row_of_[e]);
  }
  /// step() where the row says kUnknown.
  ExpressionId derive_state(ExpressionId e, std::uint8_t byte_class);

  /// Each token and each mask may take as many derivatives as the limits say.
  void begin_call() noexcept {
    steps_left_ = limits_.max_steps;
    depth_ = 0;
  }

  [[nodiscard]] const Node& node(ExpressionId e) const { return nodes_[e]; }
  [[nodiscard]] bool nullable(ExpressionId e) const { return nodes_[e].nullable; }
  [[nodiscard]] std::span<const ExpressionId> children(const Node& node) const {
    return std::span(children_).subspan(node.a, node.b);
  }
  [[nodiscard]] const ByteClasses& classes() const noexcept { return classes_; }
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] std::size_t num_bytes() const noexcept;

  /// Has `a` every text of `b`, and each of its beginnings? Pre: both are regular and finite.
  bool contains(ExpressionId a, ExpressionId b);

 private:
  static constexpr std::uint32_t kNoRow = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t kRowsPerChunk = 32;
  /// Guards a recursion.
  class Depth {
   public:
    explicit Depth(int& depth);
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };

  ExpressionId intern(Node node, std::span<const ExpressionId> children = {});
  [[nodiscard]] std::size_t hash(const Node& node, std::span<const ExpressionId> children) const;
  [[nodiscard]] bool equal(const Node& a, std::span<const ExpressionId> a_children,
                           const Node& b) const;
  void grow_table();
  void add_row(ExpressionId e);
  [[nodiscard]] ExpressionId* row_at(std::uint32_t row) {
    return rows_[row / kRowsPerChunk].data() + row % kRowsPerChunk * classes_.size();
  }

  ExpressionId derive(ExpressionId e, std::uint8_t c);
  ExpressionId derive_uncached(ExpressionId e, std::uint8_t c);
  /// Children of kUnordered: the number of required ones, separator, last, more, and the items,
  /// required ones first.
  static constexpr std::uint32_t kFirstItem = 4;
  static constexpr std::uint32_t kMoreItem = 3;
  struct ItemsLeft;
  [[nodiscard]] ItemsLeft items_left(const Node& node, std::uint32_t item) const;
  [[nodiscard]] ExpressionId behind_one(ExpressionId e, std::uint32_t item);
  /// What it stands for.
  ExpressionId items_behind(ExpressionId e);
  ExpressionId derive_unordered(ExpressionId e, std::uint8_t c);
  /// Its children's derivatives at once; whether they have a text in common is not looked at.
  ExpressionId derive_intersection(ExpressionId e, std::uint8_t c);
  ExpressionId bytes_of_classes(const std::bitset<256>& classes);
  ExpressionId import_node(const Expressions& other, const Node& node,
                           const std::unordered_map<ExpressionId, ExpressionId>& known);
  ExpressionId make_intersection(std::vector<ExpressionId> parts);
  [[nodiscard]] std::uint32_t least_bytes(const Node& node,
                                          std::span<const ExpressionId> children) const;
  [[nodiscard]] std::uint8_t text_bits(const Node& node,
                                       std::span<const ExpressionId> children) const;
  /// The same, or kNothing if it is an intersection without a text.
  ExpressionId without_empty(ExpressionId e);
  /// True: the intersection has a text, which is as short as its parts allow. False: not known.
  bool has_shortest_text(ExpressionId e);
  /// Joins alternatives that begin alike. False: there is nothing to join.
  bool merge(std::vector<ExpressionId>& parts);
  [[nodiscard]] std::pair<ExpressionId, ExpressionId> head_and_tail(ExpressionId e) const;
  void charge();

  ByteClasses classes_;
  GrammarLimits limits_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> row_of_;  ///< by expression
  std::vector<std::int8_t> has_text_;  ///< by expression: 1, 0, -1 not known (intersections)
  std::vector<ExpressionId> children_;
  std::vector<std::bitset<256>> sets_;  ///< of classes
  std::vector<std::uint32_t> table_;    ///< open addressing; 0 is free
  std::vector<std::vector<ExpressionId>> rows_;
  std::uint32_t num_rows_ = 0;
  std::vector<ExpressionId> bodies_;  ///< by rule; kUnknown: not yet
  std::unique_ptr<RuleBodies> make_bodies_;
  std::unordered_map<ExpressionId, ExpressionId> items_behind_;
  std::uint64_t steps_left_ = 0;
  int depth_ = 0;
};

}  // namespace troupe
