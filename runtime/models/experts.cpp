#include "runtime/models/experts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t kDeviceTokensAtOnce = 1024;

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
  for (std::int64_t expert = 0; expert < options.num_experts; ++expert)
    experts_.push_back(std::make_unique<const GatedMlp>(
        loader, name + ".experts." + std::to_string(expert), options.hidden_size,
        options.intermediate_size, options.canonical_shards, Activation::kSilu, false, names,
        /*takes_adapters=*/false));
  if (!loader.device().is_host()) take_addresses(loader, name);
}

void Experts::take_addresses(WeightLoader& loader, const std::string& name) {
  if (options_.num_chosen > kMaxChosenExperts)
    loader.fail(ErrorCode::kUnsupported,
                name + ": each token has " + std::to_string(options_.num_chosen) +
                    " experts; device " + std::string(loader.device().name()) +
                    " supports at most " + std::to_string(kMaxChosenExperts));
  std::vector<const std::byte*> gate_ups;
  std::vector<const std::byte*> downs;
  bool have_one_format = true;
  for (const auto& expert : experts_) {
    gate_ups.push_back(expert->gate_up().data);
    downs.push_back(expert->down().data);
    have_one_format = have_one_format &&
                      expert->gate_up().spec == experts_.front()->gate_up().spec &&
                      expert->down().spec == experts_.front()->down().spec;
  }
  if (!have_one_format)
    loader.fail(ErrorCode::kUnsupported,
                name + ": the experts are stored in several formats; device " +
                    std::string(loader.device().name()) + " supports one, device cpu any");
  gate_ups_ = loader.addresses(std::move(gate_ups));
  downs_ = loader.addresses(std::move(downs));
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
  if (step.device.is_host()) return forward_on_host(step, x, out);
  // The results of all pairs are kept until they are added up.
  for (std::int64_t row = 0; row < x.num_rows; row += kDeviceTokensAtOnce) {
    const std::int64_t count = std::min(kDeviceTokensAtOnce, x.num_rows - row);
    forward_on_device(step, {x.row(row), count, x.num_cols, x.row_stride},
                      {out.row(row), count, out.num_cols, out.row_stride});
  }
}

void Experts::forward_on_host(const LayerStep& step, ConstMatrix x, Matrix out) const {
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

void Experts::forward_on_device(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const std::int64_t num_pairs = x.num_rows * options_.num_chosen;
  Scratch scratch = step.scratch;
  const Matrix logits = scratch.take(x.num_rows, options_.num_experts);
  const Matrix results = scratch.take(num_pairs, out.num_cols);
  router_.apply(step.ops, step.context, x, logits);
  const RouteExpertsArgs routes{.logits = logits,
                                .num_chosen = options_.num_chosen,
                                .normalises_weights = options_.normalises_weights,
                                .experts = scratch.take_ints(num_pairs).data(),
                                .weights = scratch.take_floats(num_pairs).data(),
                                .pairs = scratch.take_ints(num_pairs).data(),
                                .first_pair = scratch.take_ints(options_.num_experts + 1).data(),
                                .tokens = scratch.take_ints(num_pairs).data()};
  step.ops.route_experts(step.context, routes);
  step.ops.experts_mlp(step.context, {.x = x,
                                      .gate_up = experts_.front()->gate_up().spec,
                                      .down = experts_.front()->down().spec,
                                      .gate_up_data = gate_ups_.data(),
                                      .down_data = downs_.data(),
                                      .num_experts = options_.num_experts,
                                      .first_pair = routes.first_pair,
                                      .tokens = routes.tokens,
                                      .activation = Activation::kSilu,
                                      .out = results});
  add_over_ranks(step, results);
  step.ops.add_experts(step.context, {.rows = results,
                                      .num_chosen = options_.num_chosen,
                                      .pairs = routes.pairs,
                                      .weights = routes.weights,
                                      .out = out});
}

MixerMemory Experts::memory_on_device(const OpTable& ops,
                                      std::int64_t max_num_tokens) const noexcept {
  const std::int64_t num_tokens = std::min(max_num_tokens, kDeviceTokensAtOnce);
  const std::int64_t num_pairs = num_tokens * options_.num_chosen;
  return {.scratch_bytes = Scratch::padded_bytes(num_tokens, options_.num_experts) +
                           Scratch::padded_bytes(num_pairs, options_.hidden_size) +
                           4 * Scratch::padded_bytes(1, num_pairs) +
                           Scratch::padded_bytes(1, options_.num_experts + 1),
          .workspace_bytes = std::max(ops.matmul_workspace_bytes(router_.spec(), num_tokens),
                                      ops.experts_mlp_workspace_bytes(
                                          experts_.front()->gate_up().spec,
                                          experts_.front()->down().spec, num_tokens, num_pairs))};
}

MixerMemory Experts::memory(Device& device, const MixerLimits& limits) const noexcept {
  const std::int64_t num_tokens = limits.max_num_tokens;
  if (!device.is_host()) return memory_on_device(device.ops(), num_tokens);
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

ExpertsWithShared::ExpertsWithShared(WeightLoader& loader, const std::string& name,
                                     const ExpertsOptions& options, const MlpNames& names,
                                     std::int64_t shared_size)
    : hidden_size_(options.hidden_size),
      experts_(loader, name, options, names),
      shared_(loader, name + ".shared_expert", options.hidden_size, shared_size,
              options.canonical_shards, Activation::kSilu, false, names, /*takes_adapters=*/false),
      gate_(loader, {{name + ".shared_expert_gate", 1, {0, 1}}}, options.hidden_size, false,
            MatrixRole::kRouter) {}

void ExpertsWithShared::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  experts_.forward(step, x, out);
  Scratch scratch = step.scratch;
  const Matrix shared = scratch.take(x.num_rows, out.num_cols);
  const Matrix gate = scratch.take(x.num_rows, 1);
  shared_.forward(step, x, shared);
  gate_.apply(step.ops, step.context, x, gate);
  step.ops.add_gated(step.context, {.x = shared, .gate = gate, .out = out});
}

MixerMemory ExpertsWithShared::memory(Device& device, const MixerLimits& limits) const noexcept {
  MixerMemory memory = experts_.memory(device, limits);
  memory.scratch_bytes =
      std::max(memory.scratch_bytes, Scratch::padded_bytes(limits.max_num_tokens, hidden_size_) +
                                         Scratch::padded_bytes(limits.max_num_tokens, 1));
  memory.workspace_bytes =
      std::max({memory.workspace_bytes, shared_.memory(device, limits).workspace_bytes,
                device.ops().matmul_workspace_bytes(gate_.spec(), limits.max_num_tokens)});
  return memory;
}

}  // namespace troupe
