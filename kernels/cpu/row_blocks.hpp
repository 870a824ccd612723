#pragma once
// Blocks of rows whose sums fit in the registers: their number must be a compile-time constant.

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// A number of rows as a compile-time constant.
template <int kRows>
struct RowCount {
  static constexpr int value = kRows;
};

/// Calls f(num_rows as a RowCount), for 1 to kMaxRows rows.
template <int kMaxRows, class F>
TROUPE_INLINE void with_row_count(int num_rows, const F& f) {
  if constexpr (kMaxRows > 1) {
    if (num_rows < kMaxRows) return with_row_count<kMaxRows - 1>(num_rows, f);
  }
  f(RowCount<kMaxRows>{});
}

/// The rows of the next block, such that all blocks have similar size: 8 rows are 4 + 4 rather than
/// 6 + 2.
TROUPE_INLINE std::int64_t next_block_rows(std::int64_t rows_left, std::int64_t max_rows) {
  return ceil_div(rows_left, ceil_div(rows_left, max_rows));
}

}  // namespace troupe::TROUPE_ISA
