#include "runtime/structured_output/grammar_conversion.hpp"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/structured_output/left_recursion.hpp"

namespace troupe {
namespace {

/// What is certain of a regular node's texts.
struct RegularTexts {
  bool nullable = false;     ///< the empty text is one
  bool productive = false;   ///< there is one
  bool takes_bytes = false;  ///< there is one that is not empty
  bool is_infinite = false;
  bool is_finite = false;
};

/// Nodes are converted once, each when it is first needed. Invariant: a child's number is less than
/// its parents'.
class GrammarConversion final : public RuleBodies {
 public:
  explicit GrammarConversion(std::shared_ptr<const GrammarBuilder> builder)
      : builder_(std::move(builder)), made_(builder_->nodes().size(), Expressions::kUnknown) {}

  /// Finds the rules without a text, and those with the empty one. Before that, regular nodes only
  /// can be converted.
  void analyse(Expressions& expressions) {
    find_regular_texts(expressions);
    find_parents();
    productive_ = fixpoint(&RegularTexts::productive);
    nullable_ = fixpoint(&RegularTexts::nullable);
    texts_ = {};
    parents_begin_ = {};
    parents_ = {};
  }

  /// Does a rule begin with itself, directly or through others? Pre: analyse().
  [[nodiscard]] bool has_left_recursion() const {
    std::vector<bool> is_open(made_.size());
    std::vector<bool> is_done(made_.size());
    struct Call {
      GrammarNodeId node;
      std::uint32_t next = 0;
    };
    std::vector<Call> calls;
    for (const GrammarNodeId root : builder_->bodies()) {
      if (is_done[root]) continue;
      calls.push_back({root});
      while (!calls.empty()) {
        Call& call = calls.back();
        is_open[call.node] = true;
        const std::optional<GrammarNodeId> begin = left_part(call.node, call.next++);
        if (!begin) {
          is_open[call.node] = false;
          is_done[call.node] = true;
          calls.pop_back();
        } else if (is_open[*begin]) {
          return true;
        } else if (!is_done[*begin]) {
          calls.push_back({*begin});
        }
      }
    }
    return false;
  }

  [[nodiscard]] std::vector<ExpressionId> all_bodies(Expressions& expressions) {
    std::vector<ExpressionId> bodies;
    std::vector<bool> nullable_rules;
    for (const GrammarNodeId body : builder_->bodies()) {
      bodies.push_back(convert(expressions, body));
      nullable_rules.push_back(nullable_[body]);
    }
    return without_left_recursion(expressions, std::move(bodies), nullable_rules);
  }

  ExpressionId make_body(Expressions& expressions, std::uint32_t rule) override {
    return convert(expressions, builder_->bodies()[rule]);
  }

  ExpressionId convert(Expressions& expressions, GrammarNodeId id) {
    if (made_[id] == Expressions::kUnknown) made_[id] = convert_node(expressions, id);
    return made_[id];
  }

 private:
  /// Recurses over the parts, of which there are max_depth within each other at most.
  ExpressionId convert_node(Expressions& expressions, GrammarNodeId id) {
    const GrammarNode& node = builder_->nodes()[id];
    const auto children = builder_->children(node);
    switch (node.kind) {
      case GrammarNodeKind::kNothing:
        return Expressions::kNothing;
      case GrammarNodeKind::kEmpty:
        return Expressions::kEmpty;
      case GrammarNodeKind::kBytes:
        return expressions.bytes(builder_->sets()[node.first]);
      case GrammarNodeKind::kSequence: {
        ExpressionId result = Expressions::kEmpty;
        for (std::size_t i = children.size(); i-- > 0;)
          result = expressions.sequence(convert(expressions, children[i]), result);
        return result;
      }
      case GrammarNodeKind::kChoice: {
        std::vector<ExpressionId> parts;
        parts.reserve(children.size());
        for (const GrammarNodeId child : children) parts.push_back(convert(expressions, child));
        return expressions.choice(std::move(parts));
      }
      case GrammarNodeKind::kRepeat:
        return expressions.repeat(convert(expressions, children[0]), node.min, node.max);
      case GrammarNodeKind::kIntersection: {
        const ExpressionId first = convert(expressions, children[0]);
        return expressions.intersection(first, convert(expressions, children[1]));
      }
      case GrammarNodeKind::kComplement:
        return expressions.complement(convert(expressions, children[0]));
      case GrammarNodeKind::kMultiple:
        return expressions.multiple_of(node.max);
      case GrammarNodeKind::kUnordered:
        return convert_unordered(expressions, node, children);
      case GrammarNodeKind::kRule: {
        const GrammarNodeId body = builder_->bodies()[node.first];
        return productive_[body] ? expressions.rule(node.first, nullable_[body])
                                 : Expressions::kNothing;
      }
    }
    return Expressions::kNothing;
  }

  ExpressionId convert_unordered(Expressions& expressions, const GrammarNode& node,
                                 std::span<const GrammarNodeId> children) {
    const auto repeated = [&](GrammarNodeId id) {
      return builder_->nodes()[id].kind == GrammarNodeKind::kRepeat
                 ? convert(expressions, builder_->children(builder_->nodes()[id])[0])
                 : Expressions::kNothing;
    };
    Expressions::Unordered items{.separator = convert(expressions, children[0]),
                                 .last = convert(expressions, children[1]),
                                 .more = repeated(children[2]),
                                 .required = {},
                                 .optional = {},
                                 .min = node.min,
                                 .max = node.max};
    for (const GrammarNodeId child : children.subspan(3)) {
      if (builder_->nodes()[child].kind != GrammarNodeKind::kRepeat) {
        items.required.push_back(convert(expressions, child));
      } else if (const ExpressionId one = repeated(child); one != Expressions::kNothing) {
        items.optional.push_back(one);
      }
    }
    return expressions.unordered(items);
  }

  void find_regular_texts(Expressions& expressions) {
    const auto& nodes = builder_->nodes();
    texts_.resize(nodes.size());
    for (GrammarNodeId id = 0; id < nodes.size(); ++id)
      if (nodes[id].is_regular) texts_[id] = regular_texts(expressions, id);
  }

  /// Pre: those of its children are known.
  RegularTexts regular_texts(Expressions& expressions, GrammarNodeId id) {
    const GrammarNode& node = builder_->nodes()[id];
    const auto children = builder_->children(node);
    RegularTexts texts;
    switch (node.kind) {
      case GrammarNodeKind::kNothing:
        texts.is_finite = true;
        break;
      case GrammarNodeKind::kEmpty:
        texts = {.nullable = true, .productive = true, .is_finite = true};
        break;
      case GrammarNodeKind::kBytes:
        texts = {.productive = true, .takes_bytes = true, .is_finite = true};
        break;
      case GrammarNodeKind::kSequence:
        texts = {.nullable = true, .productive = true, .is_finite = true};
        for (const GrammarNodeId child : children) {
          const RegularTexts& part = texts_[child];
          texts.nullable = texts.nullable && part.nullable;
          texts.productive = texts.productive && part.productive;
          texts.takes_bytes = texts.takes_bytes || part.takes_bytes;
          texts.is_infinite = texts.is_infinite || part.is_infinite;
          texts.is_finite = texts.is_finite && part.is_finite;
        }
        texts.takes_bytes = texts.takes_bytes && texts.productive;
        texts.is_infinite = texts.is_infinite && texts.productive;
        break;
      case GrammarNodeKind::kChoice:
        texts.is_finite = true;
        for (const GrammarNodeId child : children) {
          const RegularTexts& part = texts_[child];
          texts.nullable = texts.nullable || part.nullable;
          texts.productive = texts.productive || part.productive;
          texts.takes_bytes = texts.takes_bytes || part.takes_bytes;
          texts.is_infinite = texts.is_infinite || part.is_infinite;
          texts.is_finite = texts.is_finite && part.is_finite;
        }
        break;
      case GrammarNodeKind::kRepeat: {
        const RegularTexts& part = texts_[children[0]];
        const bool is_bounded = node.max != GrammarBuilder::kUnbounded;
        texts = {.nullable = node.min == 0 || part.nullable,
                 .productive = node.min == 0 || part.productive,
                 .takes_bytes = part.takes_bytes,
                 .is_infinite = part.is_infinite || (!is_bounded && part.takes_bytes),
                 .is_finite = is_bounded && part.is_finite};
        break;
      }
      case GrammarNodeKind::kIntersection: {
        const RegularTexts& a = texts_[children[0]];
        const RegularTexts& b = texts_[children[1]];
        texts.nullable = a.nullable && b.nullable;
        texts.is_finite = a.is_finite || b.is_finite;
        // Finitely many exclusions leave some of infinitely many texts.
        if ((a.is_infinite && excludes_few(children[1])) ||
            (b.is_infinite && excludes_few(children[0]))) {
          texts.productive = texts.takes_bytes = texts.is_infinite = true;
        } else {
          texts.productive = convert(expressions, id) != Expressions::kNothing;
        }
        break;
      }
      case GrammarNodeKind::kComplement:
        texts.nullable = !texts_[children[0]].nullable;
        if (excludes_few(id)) {
          texts.productive = texts.takes_bytes = texts.is_infinite = true;
        } else {
          texts.productive = convert(expressions, id) != Expressions::kNothing;
        }
        break;
      case GrammarNodeKind::kMultiple:
        texts = {.nullable = true, .productive = true, .takes_bytes = true, .is_infinite = true};
        break;
      case GrammarNodeKind::kUnordered:
      case GrammarNodeKind::kRule:
        break;
    }
    return texts;
  }

  [[nodiscard]] bool excludes_few(GrammarNodeId id) const {
    const GrammarNode& node = builder_->nodes()[id];
    return node.kind == GrammarNodeKind::kComplement &&
           texts_[builder_->children(node)[0]].is_finite;
  }

  /// The i-th of the nodes that a node's texts may begin with; of those with rules in them.
  [[nodiscard]] std::optional<GrammarNodeId> left_part(GrammarNodeId id, std::uint32_t i) const {
    const GrammarNode& node = builder_->nodes()[id];
    if (node.is_regular) return std::nullopt;
    if (node.kind == GrammarNodeKind::kRule)
      return i == 0 ? std::optional(builder_->bodies()[node.first]) : std::nullopt;
    if (i >= node.count) return std::nullopt;
    const auto children = builder_->children(node);
    if (node.kind == GrammarNodeKind::kSequence && i > 0 && !nullable_[children[i - 1]])
      return std::nullopt;
    return children[i];
  }

  /// The nodes that each one is part of, flat; rules are so of their bodies' nodes.
  void find_parents() {
    const auto& nodes = builder_->nodes();
    parents_begin_.assign(nodes.size() + 1, 0);
    for_each_part([&](GrammarNodeId, GrammarNodeId part) { ++parents_begin_[part + 1]; });
    for (std::size_t i = 1; i < parents_begin_.size(); ++i)
      parents_begin_[i] += parents_begin_[i - 1];
    parents_.resize(parents_begin_.back());
    std::vector<std::uint32_t> next(parents_begin_.begin(), parents_begin_.end() - 1);
    for_each_part([&](GrammarNodeId id, GrammarNodeId part) { parents_[next[part]++] = id; });
  }

  template <class Use>
  void for_each_part(const Use& use) const {
    const auto& nodes = builder_->nodes();
    for (GrammarNodeId id = 0; id < nodes.size(); ++id) {
      const GrammarNode& node = nodes[id];
      if (node.is_regular) continue;
      if (node.kind == GrammarNodeKind::kRule) {
        use(id, builder_->bodies()[node.first]);
      } else {
        for (const GrammarNodeId child : builder_->children(node)) use(id, child);
      }
    }
  }

  /// By node, the least solution: a sequence has the property if all of its parts have (so has what
  /// comes in any order), a choice if one of them has, a rule if its body has. Linear in the size
  /// of the grammar.
  [[nodiscard]] std::vector<bool> fixpoint(bool RegularTexts::*property) const {
    const auto& nodes = builder_->nodes();
    std::vector<bool> holds(nodes.size());
    std::vector<std::uint32_t> missing(nodes.size());
    std::vector<GrammarNodeId> pending;
    const auto set = [&](GrammarNodeId id) {
      if (holds[id]) return;
      holds[id] = true;
      pending.push_back(id);
    };
    for (GrammarNodeId id = 0; id < nodes.size(); ++id) {
      const GrammarNode& node = nodes[id];
      if (node.is_regular) {
        if (texts_[id].*property) set(id);
        continue;
      }
      const bool needs_all =
          node.kind == GrammarNodeKind::kSequence || node.kind == GrammarNodeKind::kUnordered;
      missing[id] = needs_all ? node.count : 1;
      if (node.kind == GrammarNodeKind::kRepeat && node.min == 0) set(id);
    }
    while (!pending.empty()) {
      const GrammarNodeId id = pending.back();
      pending.pop_back();
      for (std::uint32_t i = parents_begin_[id]; i < parents_begin_[id + 1]; ++i)
        if (missing[parents_[i]] > 0 && --missing[parents_[i]] == 0) set(parents_[i]);
    }
    return holds;
  }

  const std::shared_ptr<const GrammarBuilder> builder_;
  std::vector<ExpressionId> made_;  ///< by node; kUnknown: not yet
  std::vector<bool> productive_;    ///< by node
  std::vector<bool> nullable_;      ///< by node
  // While it is analysed.
  std::vector<RegularTexts> texts_;           ///< by node, of regular ones
  std::vector<std::uint32_t> parents_begin_;  ///< by node, in parents_; one more
  std::vector<GrammarNodeId> parents_;
};

}  // namespace

ExpressionId to_expression(const GrammarBuilder& builder, GrammarNodeId node,
                           Expressions& expressions) {
  // It outlives the conversion.
  return GrammarConversion({std::shared_ptr<void>(), &builder}).convert(expressions, node);
}

void set_rules(std::shared_ptr<const GrammarBuilder> builder, Expressions& expressions) {
  const std::size_t num_rules = builder->bodies().size();
  auto conversion = std::make_unique<GrammarConversion>(std::move(builder));
  conversion->analyse(expressions);
  if (conversion->has_left_recursion()) {
    expressions.set_bodies(conversion->all_bodies(expressions));
  } else {
    expressions.set_bodies(num_rules, std::move(conversion));
  }
}

}  // namespace troupe
