#pragma once
// A builder's nodes as expressions.

#include <memory>

#include "runtime/structured_output/expressions.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// Pre: the node is regular. Throws GrammarRefused.
[[nodiscard]] ExpressionId to_expression(const GrammarBuilder& builder, GrammarNodeId node,
                                         Expressions& expressions);

/// Sets the bodies of the builder's rules. They are made when a parser first comes to them, since
/// most texts touch few of a large grammar's rules; all at once if one begins with itself. Which
/// rules have no text is found out here, so that no parser runs into a dead end. Throws
/// GrammarRefused.
void set_rules(std::shared_ptr<const GrammarBuilder> builder, Expressions& expressions);

}  // namespace troupe
