#include "runtime/models/experts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

/// out[tokens[i]] += weights[i] * rows[i], in this order for each element.
void add_weighted(ThreadPool& pool, ConstMatrix rows, std::span<const std::int32_t> tokens,
                  std::span<const float> weights, Matrix out) {
  // Threads share columns, as the rows of one token must not meet.
  constexpr std::int64_t kVector = 16;
  constexpr std::int64_t kStripe = 8 * kVector;
  pool.parallel_for((out.num_cols + kStripe - 1) / kStripe, [&](std::int64_t stripe) {
    const std::int64_t begin = stripe * kStripe;
    const std::int64_t end = std::min(begin + kStripe, out.num_cols);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const float* __restrict from = rows.row(static_cast<std::int64_t>(i));
      float* __restrict to = out.row(tokens[i]);
      std::int64_t col = begin;
      for (; col + kVector <= end; col += kVector)
        for (std::int64_t lane = 0; lane < kVector; ++lane)
          to[col + lane] += weights[i] * from[col + lane];
      for (; col < end; ++col) to[col] += weights[i] * from[col];
    }
  });
}

}  // namespace

Experts::Experts(WeightLoader& loader, const std::string& name, const ExpertsOptions& options,
                 const MlpNames& names)
    : options_(options),
      router_(loader, {{name + ".gate", options.num_experts, {0, options.num_experts}}},
              options.hidden_size, false, MatrixRole::kRouter) {
  loader.require_cpu("mixtures of experts");
  for (std::int64_t expert = 0; expert < options.num_experts; ++expert)
    experts_.push_back(std::make_unique<const GatedMlp>(
        loader, name + ".experts." + std::to_string(expert), options.hidden_size,
        options.intermediate_size, options.canonical_shards, Activation::kSilu, false, names));
}

void Experts::choose(std::span<const float> logits, std::span<std::int32_t> experts,
                     std::span<float> weights) const {
  const auto logit_of = [&](std::int32_t expert) {
    return logits[static_cast<std::size_t>(expert)];
  };
  std::size_t count = 0;
  for (std::int32_t expert = 0; std::cmp_less(expert, logits.size()); ++expert) {
    const float logit = logit_of(expert);
    if (count == experts.size() && !(logit > logit_of(experts.back()))) continue;
    std::size_t place = count < experts.size() ? count++ : count - 1;
    // Of equal ones the first comes first.
    for (; place > 0 && logit > logit_of(experts[place - 1]); --place)
      experts[place] = experts[place - 1];
    experts[place] = expert;
  }
  const float largest = logit_of(experts.front());
  const auto exp_of = [&](float logit) { return std::exp(logit - largest); };
  for (std::size_t place = 0; place < experts.size(); ++place)
    weights[place] = exp_of(logit_of(experts[place]));
  float sum = 0;
  if (options_.normalises_weights) {
    for (const float weight : weights) sum += weight;
  } else {
    for (const float logit : logits) sum += exp_of(logit);
  }
  for (float& weight : weights) weight /= sum;
}

Experts::Routes Experts::route(const LayerStep& step, ConstMatrix x, Scratch& scratch) const {
  const std::int64_t num_tokens = x.num_rows;
  const std::int64_t num_pairs = num_tokens * options_.num_chosen;
  Routes routes{scratch.take_ints(options_.num_experts + 1), scratch.take_ints(num_pairs),
                scratch.take_floats(num_pairs)};
  // What is of no use behind this.
  Scratch own = scratch;
  const Matrix logits = own.take(num_tokens, options_.num_experts);
  const std::span<std::int32_t> chosen = own.take_ints(num_pairs);
  const std::span<float> weights = own.take_floats(num_pairs);
  router_.apply(step.ops, step.context, x, logits);
  const auto num_chosen = static_cast<std::size_t>(options_.num_chosen);
  constexpr std::int64_t kTokensAtOnce = 16;
  step.context.pool->parallel_for(
      (num_tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * kTokensAtOnce;
        for (std::int64_t token = begin; token < std::min(begin + kTokensAtOnce, num_tokens);
             ++token) {
          const std::size_t first = static_cast<std::size_t>(token) * num_chosen;
          choose({logits.row(token), static_cast<std::size_t>(options_.num_experts)},
                 chosen.subspan(first, num_chosen), weights.subspan(first, num_chosen));
        }
      });

  // Sorted by expert, and then by token.
  std::ranges::fill(routes.first, 0);
  for (const std::int32_t expert : chosen) ++routes.first[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(routes.first.begin(), routes.first.end(), routes.first.begin());
  const std::span<std::int32_t> next = own.take_ints(options_.num_experts);
  std::copy_n(routes.first.begin(), next.size(), next.begin());
  for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
    const auto at = static_cast<std::size_t>(next[static_cast<std::size_t>(chosen[pair])]++);
    routes.tokens[at] = static_cast<std::int32_t>(pair / num_chosen);
    routes.weights[at] = weights[pair];
  }
  return routes;
}

std::int64_t Experts::num_result_rows(std::int64_t num_tokens) const noexcept {
  // At least those of one expert, which may be everyone's; and of a few tokens, all.
  constexpr std::int64_t kFew = 512;
  return std::min(num_tokens * options_.num_chosen, std::max(num_tokens, kFew));
}

void Experts::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  Scratch scratch = step.scratch;
  const Routes routes = route(step, x, scratch);
  const Matrix gathered = scratch.take(x.num_rows, x.num_cols);
  const Matrix results = scratch.take(num_result_rows(x.num_rows), out.num_cols);
  for (std::int64_t row = 0; row < out.num_rows; ++row)
    std::fill_n(out.row(row), out.num_cols, 0.0f);

  std::int32_t first = 0;  // of the pairs whose results are kept
  const auto add_results = [&](std::int32_t end) {
    const auto begin = static_cast<std::size_t>(first);
    const std::size_t count = static_cast<std::size_t>(end - first);
    const Matrix rows = first_rows(results, end - first);
    add_over_ranks(step, rows);
    add_weighted(*step.context.pool, rows, routes.tokens.subspan(begin, count),
                 routes.weights.subspan(begin, count), out);
    first = end;
  };
  for (std::size_t expert = 0; expert < experts_.size(); ++expert) {
    const std::int32_t begin = routes.first[expert];
    const std::int32_t end = routes.first[expert + 1];
    if (begin == end) continue;
    if (end - first > results.num_rows) add_results(begin);
    const Matrix rows = first_rows(gathered, end - begin);
    step.ops.gather_rows(step.context, {.x = x, .rows = routes.tokens.data() + begin, .out = rows});
    experts_[expert]->multiply(step, rows,
                               {results.row(begin - first), end - begin, results.num_cols});
  }
  add_results(routes.first.back());
}

MixerMemory Experts::memory(Device& device, const MixerLimits& limits) const noexcept {
  const std::int64_t num_tokens = limits.max_num_tokens;
  const std::int64_t num_pairs = num_tokens * options_.num_chosen;
  const std::int64_t routing =
      Scratch::padded_bytes(1, options_.num_experts + 1) + 2 * Scratch::padded_bytes(1, num_pairs);
  const std::int64_t choosing = Scratch::padded_bytes(num_tokens, options_.num_experts) +
                                2 * Scratch::padded_bytes(1, num_pairs) +
                                Scratch::padded_bytes(1, options_.num_experts);
  const std::int64_t computing =
      Scratch::padded_bytes(num_tokens, options_.hidden_size) +
      Scratch::padded_bytes(num_result_rows(num_tokens), options_.hidden_size);
  MixerMemory memory{
      .scratch_bytes = routing + std::max(choosing, computing),
      .workspace_bytes = device.ops().matmul_workspace_bytes(router_.spec(), num_tokens)};
  for (const auto& expert : experts_)
    memory.workspace_bytes =
        std::max(memory.workspace_bytes, expert->memory(device, limits).workspace_bytes);
  return memory;
}

}  // namespace troupe
