#pragma once
// Row-wise work, distributed over the pool.

#include "kernels/cpu/simd.hpp"
#include "kernels/ops.hpp"
#include "kernels/thread_pool.hpp"

namespace troupe::TROUPE_ISA {

/// Calls f(row) for each of num_rows rows of about row_elements elements each. Chunks are large
/// enough to amortise the hand-over to another thread, so small work stays on the caller's.
template <class F>
TROUPE_INLINE void for_each_row(const OpContext& context, std::int64_t num_rows,
                                std::int64_t row_elements, const F& f) {
  constexpr std::int64_t kChunkElements = 8192;
  const std::int64_t rows_per_chunk = max_of(1, kChunkElements / max_of(1, row_elements));
  context.pool->parallel_for(ceil_div(num_rows, rows_per_chunk), [&](std::int64_t chunk) {
    const std::int64_t first = chunk * rows_per_chunk;
    const std::int64_t end = min_of(num_rows, first + rows_per_chunk);
    for (std::int64_t row = first; row < end; ++row) f(row);
  });
}

}  // namespace troupe::TROUPE_ISA
