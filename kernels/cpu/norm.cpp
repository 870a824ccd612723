// Normalisation of rows. Each sum runs over four vectors of partial sums in the order of the
// elements, for any number of rows.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

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

void rms_norm_row(const float* x, const float* weight, float weight_offset, float eps,
                  std::int64_t n, float* out) {
  const float squares = sum_over(x, n, [](Vec a) { return a * a; });
  const Vec factor = broadcast(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  const Vec offset = broadcast(weight_offset);
  for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
    store_lanes(out + i, load_lanes(x + i) * factor * (load_lanes(weight + i) + offset));
  });
}

}  // namespace

void rms_norm(const OpContext& context, const RmsNormArgs& args) noexcept {
  const std::int64_t n = args.x.head_dim;
  const std::int64_t num_heads = args.x.num_heads;
  for_each_row(context, args.x.num_tokens, n * num_heads, [&](std::int64_t token) {
    for (std::int64_t head = 0; head < num_heads; ++head) {
      rms_norm_row(args.x.row(token, head), args.weight, args.weight_offset, args.eps, n,
                   args.out.row(token, head));
    }
  });
}

void add_rms_norm(const OpContext& context, const AddRmsNormArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    float* residual = args.residual.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(residual + i, load_lanes(residual + i) + load_lanes(x + i));
    });
    rms_norm_row(residual, args.weight, args.weight_offset, args.eps, n, args.out.row(row));
  });
}

void layer_norm(const OpContext& context, const LayerNormArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    float* out = args.out.row(row);
    const float mean = sum_over(x, n, [](Vec a) { return a; }) / static_cast<float>(n);
    const Vec center = broadcast(mean);
    // The deviations first, so that the padding lanes of the second sum are zero.
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(x + i) - center);
    });
    const float squares = sum_over(out, n, [](Vec a) { return a * a; });
    const Vec factor =
        broadcast(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps));
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      const Vec scaled = load_lanes(out + i) * factor * load_lanes(args.weight + i);
      store_lanes(out + i, args.bias == nullptr ? scaled : scaled + load_lanes(args.bias + i));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
