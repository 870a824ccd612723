// Normalisation of rows.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_rows.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// Called by all threads of a block; out may be x.
__device__ void rms_norm_row(const float* x, const float* weight, float weight_offset, float eps,
                             std::int64_t n, float* out) {
  const float factor = rms_norm_factor(x, n, eps);
  for_each_of_block(n,
                    [=](std::int64_t i) { out[i] = x[i] * factor * (weight[i] + weight_offset); });
}

}  // namespace

void rms_norm(const OpContext& context, const RmsNormArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    rms_norm_row(args.x.row(row), args.weight, args.weight_offset, args.eps, args.x.num_cols,
                 args.out.row(row));
  });
}

void add_rms_norm(const OpContext& context, const AddRmsNormArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    const float* x = args.x.row(row);
    float* residual = args.residual.row(row);
    // Each thread later reads only what it wrote itself.
    for_each_of_block(args.x.num_cols, [=](std::int64_t i) { residual[i] += x[i]; });
    if (args.weight == nullptr) {
      float* out = args.out.row(row);
      for_each_of_block(args.x.num_cols, [=](std::int64_t i) { out[i] = residual[i]; });
      return;
    }
    rms_norm_row(residual, args.weight, args.weight_offset, args.eps, args.x.num_cols,
                 args.out.row(row));
  });
}

void add_layer_norm(const OpContext& context, const AddLayerNormArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    const float* x = args.x.row(row);
    const float* residual = args.residual.row(row);
    float* out = args.out.row(row);
    const std::int64_t n = args.x.num_cols;
    const auto size = static_cast<float>(n);
    // Each thread later reads only what it wrote itself.
    for_each_of_block(n, [=](std::int64_t i) {
      const float sum = residual[i] + x[i];
      if (args.sum.data != nullptr) args.sum.row(row)[i] = sum;
      out[i] = sum;
    });
    const float mean = sum_over<float>(n, [=](std::int64_t i) { return out[i]; }) / size;
    const float squares =
        sum_over<float>(n, [=](std::int64_t i) { return (out[i] - mean) * (out[i] - mean); });
    const float factor = 1.0f / sqrtf(squares / size + args.eps);
    for_each_of_block(n, [=](std::int64_t i) {
      out[i] = (out[i] - mean) * factor * args.weight[i] + args.bias[i];
    });
  });
}

}  // namespace troupe::TROUPE_DEVICE
