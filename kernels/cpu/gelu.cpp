// GELU of rows.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

namespace {

TROUPE_INLINE Vec gelu_of(Gelu kind, Vec x) {
  switch (kind) {
    case Gelu::kTanh:
      return gelu_tanh(x);
    case Gelu::kSigmoid:
      return gelu_sigmoid(x);
    default:
      return gelu_erf(x);
  }
}

}  // namespace

void gelu(const OpContext& context, const GeluArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  for_each_row(context, args.out.num_rows, n, [&](std::int64_t row) {
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, gelu_of(args.gelu, load_lanes(out + i)));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
