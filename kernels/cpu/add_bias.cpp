// A bias added to rows.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void add_bias(const OpContext& context, const AddBiasArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  for_each_row(context, args.out.num_rows, n, [&](std::int64_t row) {
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(out + i) + load_lanes(args.bias + i));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
