#pragma once
// Visits the direct children of a syntax tree node.

#include "runtime/chat/jinja/ast.hpp"

namespace troupe::jinja {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

/// Calls visit(const Expression&) for each direct child of `expression`.
template <class Visit>
void for_each_child(const Expression& expression, Visit visit) {
  const auto maybe = [&](const ExpressionPtr& child) {
    if (child) visit(*child);
  };
  const auto arguments = [&](const CallArguments& call) {
    for (const ExpressionPtr& argument : call.positional) visit(*argument);
    for (const auto& [name, argument] : call.named) visit(*argument);
    maybe(call.star);
    maybe(call.double_star);
  };
  std::visit(Overloaded{[](const Literal&) {}, [](const Name&) {},
                        [&](const ListLiteral& list) {
                          for (const ExpressionPtr& item : list.items) visit(*item);
                        },
                        [&](const DictLiteral& dict) {
                          for (const auto& [key, value] : dict.entries) {
                            visit(*key);
                            visit(*value);
                          }
                        },
                        [&](const Unary& unary) { visit(*unary.operand); },
                        [&](const Binary& binary) {
                          visit(*binary.left);
                          visit(*binary.right);
                        },
                        [&](const Logical& logical) {
                          visit(*logical.left);
                          visit(*logical.right);
                        },
                        [&](const Comparisons& chain) {
                          visit(*chain.first);
                          for (const Comparisons::Step& step : chain.steps) visit(*step.right);
                        },
                        [&](const Concatenation& concatenation) {
                          for (const ExpressionPtr& part : concatenation.parts) visit(*part);
                        },
                        [&](const Conditional& conditional) {
                          visit(*conditional.condition);
                          visit(*conditional.then);
                          maybe(conditional.otherwise);
                        },
                        [&](const Attribute& attribute) { visit(*attribute.object); },
                        [&](const Item& item) {
                          visit(*item.object);
                          visit(*item.key);
                        },
                        [&](const Slice& slice) {
                          visit(*slice.object);
                          maybe(slice.start);
                          maybe(slice.stop);
                          maybe(slice.step);
                        },
                        [&](const Call& call) {
                          visit(*call.callee);
                          arguments(call.arguments);
                        },
                        [&](const Filter& filter) {
                          maybe(filter.input);
                          arguments(filter.arguments);
                        },
                        [&](const Test& test) {
                          visit(*test.input);
                          arguments(test.arguments);
                        }},
             expression.node);
}

}  // namespace troupe::jinja
