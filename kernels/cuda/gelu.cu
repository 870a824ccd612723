// GELU of rows.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"

namespace troupe::TROUPE_DEVICE {

void gelu(const OpContext& context, const GeluArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    float& value = args.out.row(i / num_cols)[i % num_cols];
    value = args.gelu == Gelu::kTanh      ? math::gelu_tanh(value)
            : args.gelu == Gelu::kSigmoid ? math::gelu_sigmoid(value)
                                          : math::gelu_erf(value);
  });
}

}  // namespace troupe::TROUPE_DEVICE
