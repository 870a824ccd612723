// A bias added to rows.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {

void add_bias(const OpContext& context, const AddBiasArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    args.out.row(i / num_cols)[i % num_cols] += args.bias[i % num_cols];
  });
}

}  // namespace troupe::TROUPE_DEVICE
