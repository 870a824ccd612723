// Rows times a number, and their soft cap.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {

void scale(const OpContext& context, const ScaleArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    float& out = args.out.row(i / num_cols)[i % num_cols];
    const float x = out * args.scale;
    out = args.softcap > 0.0f ? args.softcap * tanhf(x / args.softcap) : x;
  });
}

}  // namespace troupe::TROUPE_DEVICE
