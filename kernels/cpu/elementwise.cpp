// Operations on single elements, row by row.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

/// out = f(x) for every element.
template <class F>
TROUPE_INLINE void map(const OpContext& context, ConstMatrix x, Matrix out, const F& f) {
  for_each_row(context, x.num_rows, x.num_cols, [&](std::int64_t row) {
    const float* in = x.row(row);
    float* to = out.row(row);
    for_each_vector(x.num_cols, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, f(load_lanes(in + i)));
    });
  });
}

}  // namespace

void gelu_tanh(const OpContext& context, const UnaryArgs& args) noexcept {
  map(context, args.x, args.out, [](Vec x) { return gelu_tanh(x); });
}

void scale(const OpContext& context, const ScaleArgs& args) noexcept {
  const Vec factor = broadcast(args.factor);
  map(context, args.x, args.out, [factor](Vec x) { return x * factor; });
}

void add(const OpContext& context, const AddArgs& args) noexcept {
  const std::int64_t n = args.a.num_cols;
  for_each_row(context, args.a.num_rows, n, [&](std::int64_t row) {
    const float* a = args.a.row(row);
    const float* b = args.b.row(row);
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(a + i) + load_lanes(b + i));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
