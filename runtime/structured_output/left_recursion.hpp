#pragma once

#include <vector>

#include "runtime/structured_output/expressions.hpp"

namespace troupe {

/// The same rules, none of which begins with itself, directly or through others: a := a b | c
/// becomes a := c b*. The texts of each rule stay the same, and with them what a recogniser says.
[[nodiscard]] std::vector<ExpressionId> without_left_recursion(Expressions& expressions,
                                                               std::vector<ExpressionId> bodies,
                                                               const std::vector<bool>& nullable);

}  // namespace troupe
