#pragma once
// Sums over one row for normalisation. Each uses four vectors of partial sums in the order of the
// elements, whatever the row's alignment.

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// The sum of term(vector of x) over the row; term(0) is 0.
template <class Term>
TROUPE_INLINE float sum_over(const float* x, std::int64_t n, const Term& term) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    TROUPE_UNROLL
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + term(load(x + i + j * kLanes));
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const Vec last = i + kLanes <= n ? load(x + i) : load_first(x + i, n - i);
    sums[j] = sums[j] + term(last);
  }
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// 1 / sqrt(mean(x^2) + eps).
TROUPE_INLINE float rms_norm_factor(const float* x, std::int64_t n, float eps) {
  const float squares = sum_over(x, n, [](Vec a) { return a * a; });
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

}  // namespace troupe::TROUPE_ISA
