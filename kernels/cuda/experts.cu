// Which experts tokens go to, and the sum of what these give.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// A token's scores.
struct Scores {
  const RouteExpertsArgs& args;
  const float* logits;
  float largest = 0.0f;  ///< logit
  float sum = 1.0f;      ///< of the exponentials

  __device__ Scores(const RouteExpertsArgs& from, std::int64_t token)
      : args(from), logits(from.logits.row(token)), largest(logits[0]) {
    for (std::int64_t e = 1; e < args.logits.num_cols; ++e) largest = fmaxf(largest, logits[e]);
    sum = 0.0f;
    for (std::int64_t e = 0; e < args.logits.num_cols; ++e) sum += exponential(e);
  }
  __device__ float exponential(std::int64_t expert) const { return expf(logits[expert] - largest); }
  __device__ float score(std::int64_t expert) const {
    if (args.routing.is_sigmoid) return 1.0f / (1.0f + expf(-logits[expert]));
    return exponential(expert) / sum;
  }
  /// What groups and experts are chosen by. Scores are in the order of logits.
  __device__ float choice(std::int64_t expert) const {
    const ExpertRouting& routing = args.routing;
    if (routing.choice_bias != nullptr) return score(expert) + routing.choice_bias[expert];
    return routing.sums_two_best ? score(expert) : logits[expert];
  }
};

/// Whether experts may be chosen from each group.
__device__ void choose_groups(const Scores& scores, bool* is_chosen) {
  const ExpertRouting& routing = scores.args.routing;
  const std::int64_t size = scores.args.logits.num_cols / routing.num_groups;
  float group_scores[kMaxExpertGroups];
  for (std::int64_t group = 0; group < routing.num_groups; ++group) {
    float best = -kInfinity;
    float second = -kInfinity;
    for (std::int64_t i = 0; i < size; ++i) {
      const float score = scores.choice(group * size + i);
      if (score > best) {
        second = best;
        best = score;
      } else if (score > second) {
        second = score;
      }
    }
    group_scores[group] = routing.sums_two_best ? best + second : best;
    is_chosen[group] = false;
  }
  for (std::int64_t i = 0; i < routing.num_chosen_groups; ++i) {
    std::int64_t best = -1;
    for (std::int64_t group = 0; group < routing.num_groups; ++group)
      if (!is_chosen[group] && (best < 0 || group_scores[group] > group_scores[best])) best = group;
    is_chosen[best] = true;
  }
}

/// The experts of one token, by one thread, as on the CPU.
__device__ void choose_experts(const RouteExpertsArgs& args, std::int64_t token) {
  const ExpertRouting& routing = args.routing;
  const Scores scores(args, token);
  const int num_chosen = static_cast<int>(routing.num_chosen);
  bool is_chosen_group[kMaxExpertGroups];
  const std::int64_t group_size = args.logits.num_cols / routing.num_groups;
  if (routing.num_groups > 1) choose_groups(scores, is_chosen_group);
  std::int32_t experts[kMaxChosenExperts];
  int count = 0;
  // The best one first, and of equal ones the first expert.
  for (std::int32_t expert = 0; expert < args.logits.num_cols; ++expert) {
    if (routing.num_groups > 1 && !is_chosen_group[expert / group_size]) continue;
    const float score = scores.choice(expert);
    if (count == num_chosen && !(score > scores.choice(experts[count - 1]))) continue;
    int place = count < num_chosen ? count++ : count - 1;
    for (; place > 0 && score > scores.choice(experts[place - 1]); --place)
      experts[place] = experts[place - 1];
    experts[place] = expert;
  }
  const auto unscaled = [&](std::int32_t expert) {
    // Where softmax weights are normalised, the sum over all experts does not matter.
    return !routing.is_sigmoid && routing.normalises_weights ? scores.exponential(expert)
                                                             : scores.score(expert);
  };
  float sum = routing.normalises_weights ? 0.0f : 1.0f;
  for (int place = 0; routing.normalises_weights && place < num_chosen; ++place)
    sum += unscaled(experts[place]);
  std::int32_t* sorted = args.experts + token * num_chosen;
  float* weights = args.weights + token * num_chosen;
  for (int i = 0; i < num_chosen; ++i) {
    int place = i;
    for (; place > 0 && sorted[place - 1] > experts[i]; --place) sorted[place] = sorted[place - 1];
    sorted[place] = experts[i];
  }
  for (int i = 0; i < num_chosen; ++i)
    weights[i] = unscaled(sorted[i]) / sum * routing.weight_scale;
}

/// Numbers the pairs, on the threads of one block; each has some experts.
__device__ void sort_pairs(const RouteExpertsArgs& args) {
  const std::int64_t num_experts = args.logits.num_cols;
  const std::int64_t num_chosen = args.routing.num_chosen;
  const std::int64_t num_pairs = args.logits.num_rows * num_chosen;
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
      args.tokens[pair] = static_cast<std::int32_t>(i / num_chosen);
      args.pair_weights[pair] = args.weights[i];
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
    for (std::int64_t pair = token * args.num_chosen; pair < (token + 1) * args.num_chosen;
         ++pair) {
      const float weight = args.weights == nullptr ? 1.0f : args.weights[pair];
      float value = args.rows.row(args.pairs[pair])[col];
      if (args.biases != nullptr) value += args.biases[args.experts[pair]][col];
      sum = __fmaf_rn(weight, value, sum);
    }
    args.out.row(token)[col] = sum;
  });
}

}  // namespace troupe::TROUPE_DEVICE
