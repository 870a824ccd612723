// Rows added with a gate of each.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {

void add_gated(const OpContext& context, const AddGatedArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    const std::int64_t row = i / num_cols;
    const std::int64_t col = i % num_cols;
    const float gate = 1.0f / (1.0f + expf(-*args.gate.row(row)));
    args.out.row(row)[col] += gate * args.x.row(row)[col];
  });
}

}  // namespace troupe::TROUPE_DEVICE
