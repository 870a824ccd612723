// What is asked of rows of logits.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::cuda {
namespace {

/// The largest value, for every thread of the block; NaN counts only if there is nothing else.
__device__ float row_max(const float* x, std::int64_t n) {
  float largest = -kInfinity;
  for_each_of_block(n, [&](std::int64_t i) { largest = fmaxf(largest, x[i]); });
  return reduce_block(largest, Max{});
}

/// No index yet, or the lowest one of equal values.
struct EarlierIndex {
  __device__ std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    if (a < 0) return b;
    return b < 0 || a < b ? a : b;
  }
};

}  // namespace

void log_softmax(const OpContext& context, const LogSoftmaxArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    const std::int64_t n = args.x.num_cols;
    const float* x = args.x.row(row);
    float* out = args.out.row(row);
    const float largest = row_max(x, n);
    // Vocabularies are long, so the sum is a double.
    const double sum = sum_over<double>(
        n, [=](std::int64_t i) { return static_cast<double>(expf(x[i] - largest)); });
    const auto log_sum = static_cast<float>(log(sum));
    // x - largest first: it is exact near the top, where precision is asked for.
    for_each_of_block(n, [=](std::int64_t i) { out[i] = (x[i] - largest) - log_sum; });
  });
}

void token_ranks(const OpContext& context, const TokenRanksArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    const float* x = args.x.row(row);
    const float value = x[args.tokens[row]];
    const auto rank = sum_over<std::int32_t>(args.x.num_cols,
                                             [=](std::int64_t i) { return x[i] >= value ? 1 : 0; });
    if (threadIdx.x == 0) args.ranks[row] = rank;
  });
}

void argmax(const OpContext& context, const ArgmaxArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    const std::int64_t n = args.x.num_cols;
    const float* x = args.x.row(row);
    const float largest = row_max(x, n);
    std::int32_t index = -1;
    for_each_of_block(n, [&](std::int64_t i) {
      if (index < 0 && x[i] == largest) index = static_cast<std::int32_t>(i);
    });
    index = reduce_block(index, EarlierIndex{});
    if (threadIdx.x == 0) args.indices[row] = index;
  });
}

}  // namespace troupe::cuda
