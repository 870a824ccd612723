// GELU of rows.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void gelu(const OpContext& context, const GeluArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  for_each_row(context, args.out.num_rows, n, [&](std::int64_t row) {
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      const Vec x = load_lanes(out + i);
      store_lanes(out + i, args.approximates_by_tanh ? gelu_tanh(x) : gelu_erf(x));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
