// Normalisation of rows.

#include <string.h>

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/norm_rows.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

void rms_norm_row(const float* x, const float* weight, float weight_offset, float eps,
                  std::int64_t n, float* out) {
  const Vec factor = broadcast(rms_norm_factor(x, n, eps));
  const Vec offset = broadcast(weight_offset);
  for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
    store_lanes(out + i, load_lanes(x + i) * factor * (load_lanes(weight + i) + offset));
  });
}

}  // namespace

void rms_norm(const OpContext& context, const RmsNormArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    rms_norm_row(args.x.row(row), args.weight, args.weight_offset, args.eps, n, args.out.row(row));
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
    if (args.weight == nullptr) {
      memcpy(args.out.row(row), residual, static_cast<std::size_t>(n) * sizeof(float));
      return;
    }
    rms_norm_row(residual, args.weight, args.weight_offset, args.eps, n, args.out.row(row));
  });
}

void add_layer_norm(const OpContext& context, const AddLayerNormArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    const float* x = args.x.row(row);
    const float* residual = args.residual.row(row);
    float* out = args.out.row(row);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      const Vec sum = load_lanes(residual + i) + load_lanes(x + i);
      if (args.sum.data != nullptr) store_lanes(args.sum.row(row) + i, sum);
      store_lanes(out + i, sum);
    });
    const auto size = static_cast<float>(n);
    const Vec mean = broadcast(sum_over(out, n, [](Vec a) { return a; }) / size);
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(out + i) - mean);
    });
    const float squares = sum_over(out, n, [](Vec a) { return a * a; });
    const Vec factor = broadcast(1.0f / __builtin_sqrtf(squares / size + args.eps));
    for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(out + i, load_lanes(out + i) * factor * load_lanes(args.weight + i) +
                               load_lanes(args.bias + i));
    });
  });
}

}  // namespace troupe::TROUPE_ISA
