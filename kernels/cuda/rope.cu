// Rotary position embedding.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::cuda {

void rope(const OpContext& context, const RopeArgs& args) noexcept {
  const std::int64_t half = args.rotary_dim / 2;
  if (half == 0) return;
  const std::int64_t pairs_per_token = (args.q.num_heads + args.k.num_heads) * half;
  for_each_element(
      context, args.q.num_tokens * pairs_per_token, [=] __device__(std::int64_t index) {
        const std::int64_t token = index / pairs_per_token;
        const std::int64_t head = index % pairs_per_token / half;
        const std::int64_t i = index % half;
        float* x = head < args.q.num_heads ? args.q.row(token, head)
                                           : args.k.row(token, head - args.q.num_heads);
        const bool halves = args.style == RopeStyle::kHalves;
        float& first = halves ? x[i] : x[2 * i];
        float& second = halves ? x[half + i] : x[2 * i + 1];
        const std::int64_t angle = args.positions[token] * half + i;
        const float c = args.cos[angle];
        const float s = args.sin[angle];
        const float a = first;
        const float b = second;
        first = a * c - b * s;
        second = b * c + a * s;
      });
}

}  // namespace troupe::cuda
