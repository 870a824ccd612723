// Which experts tokens go to, and the sum of what these give.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// The experts of one token, by one thread, as on the CPU.
__device__ void choose_experts(const RouteExpertsArgs& args, std::int64_t token) {
  const float* logits = args.logits.row(token);
  const int num_chosen = static_cast<int>(args.num_chosen);
  std::int32_t experts[kMaxChosenExperts];
  int count = 0;
  // The largest logit first, and of equal ones the first expert.
  for (std::int32_t expert = 0; expert < args.logits.num_cols; ++expert) {
    const float logit = logits[expert];
    if (count == num_chosen && !(logit > logits[experts[count - 1]])) continue;
    int place = count < num_chosen ? count++ : count - 1;
    for (; place > 0 && logit > logits[experts[place - 1]]; --place)
      experts[place] = experts[place - 1];
    experts[place] = expert;
  }
  const float largest = logits[experts[0]];
  float sum = 0.0f;
  if (args.normalises_weights) {
    for (int place = 0; place < num_chosen; ++place) sum += expf(logits[experts[place]] - largest);
  } else {
    for (std::int64_t expert = 0; expert < args.logits.num_cols; ++expert)
      sum += expf(logits[expert] - largest);
  }
  std::int32_t* sorted = args.experts + token * num_chosen;
  float* weights = args.weights + token * num_chosen;
  for (int i = 0; i < num_chosen; ++i) {
    int place = i;
    for (; place > 0 && sorted[place - 1] > experts[i]; --place) sorted[place] = sorted[place - 1];
    sorted[place] = experts[i];
  }
  for (int i = 0; i < num_chosen; ++i) weights[i] = expf(logits[sorted[i]] - largest) / sum;
}

/// Numbers the pairs, on the threads of one block; each has some experts.
__device__ void sort_pairs(const RouteExpertsArgs& args) {
  const std::int64_t num_experts = args.logits.num_cols;
  const std::int64_t num_pairs = args.logits.num_rows * args.num_chosen;
  for_each_of_block(num_experts, [&](std::int64_t expert) {
    std::int32_t count = 0;
    for (std::int64_t i = 0; i < num_pairs; ++i) count += args.experts[i] == expert ? 1 : 0;
    args.first_pair[expert + 1] = count;
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    args.first_pair[0] = 0;
    for (std::int64_t expert = 0; expert < num_experts; ++expert)
      args.first_pair[expert + 1] += args.first_pair[expert];
  }
  __syncthreads();
  for_each_of_block(num_experts, [&](std::int64_t expert) {
    std::int32_t pair = args.first_pair[expert];
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      if (args.experts[i] != expert) continue;
      args.tokens[pair] = static_cast<std::int32_t>(i / args.num_chosen);
      args.pairs[i] = pair++;
    }
  });
}

}  // namespace

void route_experts(const OpContext& context, const RouteExpertsArgs& args) noexcept {
  for_each_element(context, args.logits.num_rows,
                   [=] __device__(std::int64_t token) { choose_experts(args, token); });
  for_each_row(context, 1, [=] __device__(std::int64_t) { sort_pairs(args); });
}

void add_experts(const OpContext& context, const AddExpertsArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    const std::int64_t token = i / num_cols;
    const std::int64_t col = i % num_cols;
    float sum = 0.0f;
    for (std::int64_t pair = token * args.num_chosen; pair < (token + 1) * args.num_chosen; ++pair)
      sum = __fmaf_rn(args.weights[pair], args.rows.row(args.pairs[pair])[col], sum);
    args.out.row(token)[col] = sum;
  });
}

}  // namespace troupe::TROUPE_DEVICE
