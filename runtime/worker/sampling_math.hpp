#pragma once
// Arithmetic that sampling and log-probabilities share.

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// Index of the largest value, the lowest of equal ones. Errors: NaN or +inf among the values, or
/// nothing above -inf; the text speaks of them as logits.
Result<std::size_t> index_of_largest(std::span<const float> logits);

/// out[i] = exp(logits[i] - largest), relative error below 1e-6 of exp's value at the rounded
/// difference; e^-87 where that is less. Written out, so that the result does not depend on the
/// C library or on the instruction set that it chooses. Pre: no logit is above `largest`.
void exp_differences(std::span<const float> logits, float largest, std::span<float> out) noexcept;

/// The sum of exp(logits[i] - largest), in double and in one fixed order.
[[nodiscard]] double sum_of_exp(std::span<const float> logits, float largest) noexcept;

/// The sum of the values, in double and in one fixed order.
[[nodiscard]] double sum_of(std::span<const float> values) noexcept;

/// The k-th largest value, equal ones counted each; O(values.size()) in all but degenerate cases.
/// Pre: 1 <= k <= values.size(), no NaN. `scratch` keeps its memory for the next call.
[[nodiscard]] float kth_largest(std::span<const float> values, std::size_t k,
                                std::vector<float>& scratch);

}  // namespace troupe
