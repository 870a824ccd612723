#include "runtime/structured_output/left_recursion.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>

namespace troupe {
namespace {

using Kind = Expressions::Kind;
constexpr ExpressionId kNothing = Expressions::kNothing;
/// So that no grammar overflows the stack of a thread.
constexpr int kMaxDepth = 2000;
constexpr ExpressionId kEmpty = Expressions::kEmpty;

/// An expression as what follows rules that it begins with, and the rest that begins with none:
/// e = R1 f1 | R2 f2 | ... | rest, where Ri stands for the texts of rule i but the empty one.
struct LeftCorners {
  std::map<std::uint32_t, ExpressionId> following;
  ExpressionId rest = kNothing;
};

class LeftRecursion {
 public:
  LeftRecursion(Expressions& expressions, std::vector<ExpressionId> bodies,
                const std::vector<bool>& nullable)
      : expressions_(expressions), bodies_(std::move(bodies)), nullable_(nullable) {}

  std::vector<ExpressionId> run() {
    begins_with_.resize(bodies_.size());
    for (std::size_t i = 0; i < bodies_.size(); ++i) {
      std::unordered_set<ExpressionId> seen;
      collect(bodies_[i], begins_with_[i], seen);
    }
    find_components();
    return std::move(bodies_);
  }

 private:
  /// The rules that the expression may begin with.
  void collect(ExpressionId root, std::vector<std::uint32_t>& rules,
               std::unordered_set<ExpressionId>& seen) const {
    std::vector<ExpressionId> pending{root};
    while (!pending.empty()) {
      const ExpressionId e = pending.back();
      pending.pop_back();
      if (!seen.insert(e).second) continue;
      const Expressions::Node& node = expressions_.node(e);
      switch (node.kind) {
        case Kind::kRule:
          rules.push_back(node.a);
          break;
        case Kind::kSequence:
          pending.push_back(node.a);
          if (expressions_.nullable(node.a)) pending.push_back(node.b);
          break;
        case Kind::kChoice:
          for (const ExpressionId child : expressions_.children(node)) pending.push_back(child);
          break;
        case Kind::kRepeat:
        case Kind::kNotEmpty:
          pending.push_back(node.a);
          break;
        default:
          break;
      }
    }
  }

  /// Tarjan's algorithm for strongly connected components, without recursion.
  void find_components() {
    const std::size_t n = bodies_.size();
    constexpr std::size_t kUnseen = ~std::size_t{0};
    std::vector<std::size_t> index(n, kUnseen);
    std::vector<std::size_t> low(n);
    std::vector<bool> on_stack(n);
    std::vector<std::uint32_t> stack;
    std::vector<std::pair<std::uint32_t, std::size_t>> calls;
    std::size_t next_index = 0;
    for (std::uint32_t root = 0; root < n; ++root) {
      if (index[root] != kUnseen) continue;
      calls.emplace_back(root, 0);
      while (!calls.empty()) {
        auto& [rule, edge] = calls.back();
        if (edge == 0) {
          index[rule] = low[rule] = next_index++;
          stack.push_back(rule);
          on_stack[rule] = true;
        }
        if (edge < begins_with_[rule].size()) {
          const std::uint32_t to = begins_with_[rule][edge++];
          if (index[to] == kUnseen) {
            calls.emplace_back(to, 0);
          } else if (on_stack[to]) {
            low[rule] = std::min(low[rule], index[to]);
          }
          continue;
        }
        const std::uint32_t done = rule;
        calls.pop_back();
        if (!calls.empty()) low[calls.back().first] = std::min(low[calls.back().first], low[done]);
        if (low[done] != index[done]) continue;
        std::vector<std::uint32_t> component;
        do {
          component.push_back(stack.back());
          on_stack[stack.back()] = false;
          stack.pop_back();
        } while (component.back() != done);
        const auto& edges = begins_with_[done];
        if (component.size() > 1 || std::find(edges.begin(), edges.end(), done) != edges.end())
          solve(component);
      }
    }
  }

  LeftCorners split(ExpressionId e, const std::unordered_set<std::uint32_t>& rules, int depth = 0) {
    if (++depth > kMaxDepth)
      throw GrammarRefused("a rule that begins with itself is nested deeper than " +
                           std::to_string(kMaxDepth) + " expressions");
    const Expressions::Node node = expressions_.node(e);
    switch (node.kind) {
      case Kind::kRule: {
        if (!rules.contains(node.a)) return {{}, e};
        return {{{node.a, kEmpty}}, nullable_[node.a] ? kEmpty : kNothing};
      }
      case Kind::kSequence: {
        LeftCorners result = split(node.a, rules, depth);
        for (auto& [rule, following] : result.following)
          following = expressions_.sequence(following, node.b);
        if (!expressions_.nullable(result.rest)) {
          result.rest = expressions_.sequence(result.rest, node.b);
          return result;
        }
        const LeftCorners second = split(node.b, rules, depth);
        for (const auto& [rule, following] : second.following) add(result, rule, following);
        result.rest = expressions_.choice(
            expressions_.sequence(expressions_.not_empty(result.rest), node.b), second.rest);
        return result;
      }
      case Kind::kChoice: {
        LeftCorners result;
        std::vector<ExpressionId> rests;
        for (std::uint32_t i = 0; i < node.b; ++i) {
          const ExpressionId child = expressions_.children(expressions_.node(e))[i];
          const LeftCorners part = split(child, rules, depth);
          for (const auto& [rule, following] : part.following) add(result, rule, following);
          rests.push_back(part.rest);
        }
        result.rest = expressions_.choice(std::move(rests));
        return result;
      }
      case Kind::kNotEmpty: {
        LeftCorners result = split(node.a, rules, depth);
        result.rest = expressions_.not_empty(result.rest);
        return result;
      }
      case Kind::kRepeat: {
        LeftCorners result = split(node.a, rules, depth);
        if (result.following.empty()) return {{}, e};
        const std::uint32_t max = node.max == Expressions::kUnbounded ? node.max : node.max - 1;
        const ExpressionId more =
            expressions_.repeat(node.a, node.min == 0 ? 0 : node.min - 1, max);
        for (auto& [rule, following] : result.following)
          following = expressions_.sequence(following, more);
        result.rest = expressions_.sequence(expressions_.not_empty(result.rest), more);
        if (node.min == 0) result.rest = expressions_.choice(result.rest, kEmpty);
        return result;
      }
      default:
        return {{}, e};
    }
  }

  void add(LeftCorners& corners, std::uint32_t rule, ExpressionId following) {
    ExpressionId& present = corners.following.try_emplace(rule, kNothing).first->second;
    present = expressions_.choice(present, following);
  }

  /// Gauss: from the first rule on, each is put in the place of its name where the later ones begin
  /// with it. Then each begins with later ones only.
  void solve(const std::vector<std::uint32_t>& component) {
    const std::unordered_set<std::uint32_t> rules(component.begin(), component.end());
    std::map<std::uint32_t, LeftCorners> equations;
    for (const std::uint32_t rule : component) {
      LeftCorners equation = split(bodies_[rule], rules);
      equation.rest = expressions_.not_empty(equation.rest);
      equations.emplace(rule, std::move(equation));
    }
    for (std::size_t k = 0; k < component.size(); ++k) {
      LeftCorners& equation = equations.at(component[k]);
      for (std::size_t j = 0; j < k; ++j) {
        const auto found = equation.following.find(component[j]);
        if (found == equation.following.end()) continue;
        const ExpressionId behind = found->second;
        equation.following.erase(found);
        const LeftCorners& earlier = equations.at(component[j]);
        for (const auto& [rule, following] : earlier.following)
          add(equation, rule, expressions_.sequence(following, behind));
        equation.rest =
            expressions_.choice(equation.rest, expressions_.sequence(earlier.rest, behind));
      }
      const auto self = equation.following.find(component[k]);
      if (self == equation.following.end()) continue;
      const ExpressionId again = expressions_.repeat(self->second, 0, Expressions::kUnbounded);
      equation.following.erase(self);
      for (auto& [rule, following] : equation.following)
        following = expressions_.sequence(following, again);
      equation.rest = expressions_.sequence(equation.rest, again);
    }
    for (const std::uint32_t rule : component) {
      const LeftCorners& equation = equations.at(rule);
      std::vector<ExpressionId> parts{equation.rest};
      for (const auto& [other, following] : equation.following)
        parts.push_back(expressions_.sequence(
            expressions_.not_empty(expressions_.rule(other, nullable_[other])), following));
      if (nullable_[rule]) parts.push_back(kEmpty);
      bodies_[rule] = expressions_.choice(std::move(parts));
    }
  }

  Expressions& expressions_;
  std::vector<ExpressionId> bodies_;
  const std::vector<bool>& nullable_;
  std::vector<std::vector<std::uint32_t>> begins_with_;
};

}  // namespace

std::vector<ExpressionId> without_left_recursion(Expressions& expressions,
                                                 std::vector<ExpressionId> bodies,
                                                 const std::vector<bool>& nullable) {
  return LeftRecursion(expressions, std::move(bodies), nullable).run();
}

}  // namespace troupe
