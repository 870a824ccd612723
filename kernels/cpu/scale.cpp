// Rows times a number, and their soft cap.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void scale(const OpContext& context, const ScaleArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  const Vec factor = broadcast(args.scale);
  const Vec cap = broadcast(args.softcap);
  const bool is_capped = args.softcap > 0.0f;
  for_each_row(context, args.out.num_rows, n, [&](std::int64_t row) {
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      const Vec x = load_lanes(out + i) * factor;
      store_lanes(out + i, is_capped ? cap * tanh(x / cap) : x);
    });
  });
}

}  // namespace troupe::TROUPE_ISA
