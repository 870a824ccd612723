// Rows added with a gate of each.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void add_gated(const OpContext& context, const AddGatedArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  const Vec one = broadcast(1.0f);
  for_each_row(context, args.out.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    float* out = args.out.row(row);
    const Vec gate = one / (one + exp(zero() - broadcast(*args.gate.row(row))));
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(out + i) + gate * load_lanes(x + i));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
