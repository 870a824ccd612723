#include "runtime/models/experts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::int64_t kDeviceTokensAtOnce = 1024;

/// out[tokens[i]] += weights[i] * rows[i], in this order for each element; without weights,
/// rows[i].
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
      const float weight = weights.empty() ? 1 : weights[i];
      std::int64_t col = begin;
      for (; col + kVector <= end; col += kVector)
        for (std::int64_t lane = 0; lane < kVector; ++lane)
          to[col + lane] += weight * from[col + lane];
      for (; col < end; ++col) to[col] += weight * from[col];
    }
  });
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// Chooses the experts of one token and their weights (ExpertRouting).
class ExpertChoice {
 public:
  ExpertChoice(const ExpertRouting& routing, std::span<const float> logits)
      : routing_(routing),
        logits_(logits),
        largest_(*std::ranges::max_element(logits)),
        group_size_(static_cast<std::int64_t>(logits.size()) / routing.num_groups) {
    if (routing.is_sigmoid) return;
    for (const float logit : logits) sum_ += std::exp(logit - largest_);
  }

  /// The best experts first.
  void run(std::span<std::int32_t> experts, std::span<float> weights) {
    if (routing_.num_groups > 1) choose_groups();
    std::size_t count = 0;
    for (std::int32_t expert = 0; std::cmp_less(expert, logits_.size()); ++expert) {
      if (routing_.num_groups > 1 && !is_chosen_[static_cast<std::size_t>(expert / group_size_)])
        continue;
      const float score = choice(expert);
      if (count == experts.size() && !(score > choice(experts.back()))) continue;
      std::size_t place = count < experts.size() ? count++ : count - 1;
      // Of equal ones the first comes first.
      for (; place > 0 && score > choice(experts[place - 1]); --place)
        experts[place] = experts[place - 1];
      experts[place] = expert;
    }
    float sum = 1;
    for (std::size_t place = 0; place < experts.size(); ++place)
      weights[place] = unscaled_weight(experts[place]);
    if (routing_.normalises_weights) {
      sum = 0;
      for (const float weight : weights) sum += weight;
    }
    for (float& weight : weights) weight = weight / sum * routing_.weight_scale;
  }

 private:
  [[nodiscard]] float logit(std::int64_t expert) const {
    return logits_[static_cast<std::size_t>(expert)];
  }
  [[nodiscard]] float score(std::int64_t expert) const {
    if (routing_.is_sigmoid) return sigmoid(logit(expert));
    return std::exp(logit(expert) - largest_) / sum_;
  }
  /// What groups and experts are chosen by. Scores are in the order of logits.
  [[nodiscard]] float choice(std::int64_t expert) const {
    if (routing_.choice_bias != nullptr) return score(expert) + routing_.choice_bias[expert];
    return routing_.sums_two_best ? score(expert) : logit(expert);
  }
  [[nodiscard]] float unscaled_weight(std::int64_t expert) const {
    // Where softmax weights are normalised, the sum over all experts does not matter.
    if (!routing_.is_sigmoid && routing_.normalises_weights)
      return std::exp(logit(expert) - largest_);
    return score(expert);
  }

  void choose_groups() {
    std::array<float, kMaxExpertGroups> scores{};
    for (std::int64_t group = 0; group < routing_.num_groups; ++group) {
      float best = -std::numeric_limits<float>::infinity();
      float second = best;
      for (std::int64_t i = 0; i < group_size_; ++i) {
        const float score = choice(group * group_size_ + i);
        if (score > best)
          second = std::exchange(best, score);
        else if (score > second)
          second = score;
      }
      scores[static_cast<std::size_t>(group)] = routing_.sums_two_best ? best + second : best;
    }
    for (std::int64_t i = 0; i < routing_.num_chosen_groups; ++i) {
      std::optional<std::size_t> best;
      for (std::size_t group = 0; std::cmp_less(group, routing_.num_groups); ++group)
        if (!is_chosen_[group] && (!best || scores[group] > scores[*best])) best = group;
      is_chosen_[*best] = true;
    }
  }

  const ExpertRouting& routing_;
  std::span<const float> logits_;
  float largest_;
  float sum_ = 0;  ///< of the exponentials
  std::int64_t group_size_;
  std::array<bool, kMaxExpertGroups> is_chosen_{};
};

}  // namespace

MlpParts named_expert_parts(const WeightLoader&, const std::string& name,
                            const ExpertsOptions& options, std::int64_t expert) {
  const std::string prefix = name + ".experts." + std::to_string(expert) + ".";
  const MlpOptions& sizes = options.expert;
  const auto part = [&](std::string_view matrix, std::int64_t num_rows) {
    return WeightLoader::Part{prefix + std::string(matrix), num_rows, {0, num_rows}};
  };
  return {part(options.expert_names.gate, sizes.intermediate_size),
          part(options.expert_names.up, sizes.intermediate_size),
          part(options.expert_names.down, sizes.hidden_size)};
}

Experts::Experts(WeightLoader& loader, const std::string& name, const ExpertsOptions& options)
    : options_(options),
      mine_(loader.parallel().expert_parallel ? loader.shard(options.num_experts)
                                              : Slice{0, options.num_experts}),
      has_parts_(!loader.parallel().expert_parallel && loader.parallel().tensor_parallel_size > 1),
      router_(loader,
              {{name + "." + std::string(options.router_name),
                options.num_experts,
                {0, options.num_experts}}},
              options.expert.hidden_size, options.router_bias, MatrixRole::kRouter) {
  adapted_router_.target =
      loader.add_adapter_target({{name + "." + std::string(options.router_name),
                                  options.num_experts,
                                  {0, options.num_experts}}},
                                options.expert.hidden_size, {0, options.expert.hidden_size});
  if (!options.choice_bias_name.empty()) {
    choice_bias_ = loader.elements(name + "." + std::string(options.choice_bias_name),
                                   options.num_experts, {0, options.num_experts});
    options_.routing.choice_bias = choice_bias_.data();
  }
  options_.expert.is_whole = loader.parallel().expert_parallel;
  options_.expert.has_adapters = false;  // they apply to some of an expert's rows
  experts_.resize(static_cast<std::size_t>(options.num_experts));
  other_biases_.resize(experts_.size());
  for (std::int64_t expert = 0; expert < options.num_experts; ++expert) {
    MlpParts parts = options.expert_parts(loader, name, options, expert);
    const auto at = static_cast<std::size_t>(expert);
    if (loader.device().is_host()) adapt(loader, name, expert);
    if (expert >= mine_.begin && expert < mine_.end()) {
      experts_[at] = std::make_unique<const GatedMlp>(loader, std::move(parts), options_.expert);
      continue;
    }
    loader.ignore(name + ".experts." + std::to_string(expert) + ".");
    if (options.expert.has_bias) other_biases_[at] = loader.biases({parts.down});
  }
  if (!loader.device().is_host()) take_addresses(loader, name);
}

void Experts::adapt(WeightLoader& loader, const std::string& name, std::int64_t expert) {
  const bool is_mine = expert >= mine_.begin && expert < mine_.end();
  const bool is_interleaved = options_.stack == ExpertStack::kInterleaved;
  const std::int64_t hidden_size = options_.expert.hidden_size;
  const std::int64_t inner_size = options_.expert.intermediate_size;
  const Slice inner = has_parts_ ? loader.shard(inner_size) : Slice{0, inner_size};
  const std::string experts = name + ".experts.";
  const std::string own = experts + std::to_string(expert) + ".";
  const auto stacked = [&](std::string_view matrix, std::int64_t num_rows, Slice rows,
                           std::int64_t all_cols) {
    return AdapterTarget::Part{.name = experts + std::string(matrix),
                               .num_rows = num_rows,
                               .rows = rows,
                               .is_alternative = true,
                               .num_stacked = options_.num_experts,
                               .stacked = expert,
                               .is_transposed = options_.stack == ExpertStack::kTransposed,
                               .all_cols = all_cols};
  };
  AdapterTarget gate_up{
      .num_cols = hidden_size, .cols = {0, hidden_size}, .is_elsewhere = !is_mine};
  const MlpNames& names = options_.expert_names;
  for (std::int64_t half = 0; half < 2; ++half) {
    gate_up.parts.push_back({.name = own + std::string(half == 0 ? names.gate : names.up),
                             .num_rows = inner_size,
                             .rows = inner});
    const std::int64_t first =
        is_interleaved ? half + 2 * inner.begin : half * inner_size + inner.begin;
    gate_up.parts.push_back(
        stacked("gate_up_proj", 2 * inner_size, {first, inner.count}, hidden_size));
    gate_up.parts.back().row_stride = is_interleaved ? 2 : 1;
  }
  AdapterTarget down{.num_cols = inner_size, .cols = inner, .is_elsewhere = !is_mine};
  const Slice all_rows{0, hidden_size};
  down.parts.push_back(
      {.name = own + std::string(names.down), .num_rows = hidden_size, .rows = all_rows});
  down.parts.push_back(stacked("down_proj", hidden_size, all_rows, inner_size));
  const std::int32_t num_ranks = has_parts_ ? loader.parallel().tensor_parallel_size : 1;
  adapted_.push_back({.gate_up = {.target = loader.add_adapter_target(std::move(gate_up))},
                      .down = {.target = loader.add_adapter_target(std::move(down)),
                               .k_shards = options_.expert.canonical_shards / num_ranks}});
}

void Experts::take_addresses(WeightLoader& loader, const std::string& name) {
  if (options_.routing.num_chosen > kMaxChosenExperts)
    loader.fail(ErrorCode::kUnsupported,
                name + ": each token has " + std::to_string(options_.routing.num_chosen) +
                    " experts; device " + std::string(loader.device().name()) +
                    " supports at most " + std::to_string(kMaxChosenExperts));
  std::vector<const std::byte*> gate_ups;
  std::vector<const std::byte*> downs;
  std::vector<const float*> gate_up_biases;
  std::vector<const float*> down_biases;
  bool have_one_format = true;
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    const GatedMlp* const expert = experts_[i].get();
    gate_ups.push_back(expert == nullptr ? nullptr : expert->gate_up().data);
    downs.push_back(expert == nullptr ? nullptr : expert->down().data);
    gate_up_biases.push_back(expert == nullptr ? nullptr : expert->gate_up_bias());
    down_biases.push_back(down_bias(i));
    if (expert == nullptr) continue;
    have_one_format = have_one_format && expert->gate_up().spec == any_expert().gate_up().spec &&
                      expert->down().spec == any_expert().down().spec;
  }
  if (!have_one_format)
    loader.fail(ErrorCode::kUnsupported,
                name + ": the experts are stored in several formats; device " +
                    std::string(loader.device().name()) + " supports one, device cpu any");
  gate_ups_ = loader.addresses(std::move(gate_ups));
  downs_ = loader.addresses(std::move(downs));
  if (!options_.expert.has_bias) return;
  gate_up_biases_ = loader.addresses(std::move(gate_up_biases));
  down_biases_ = loader.addresses(std::move(down_biases));
}

Experts::Routes Experts::route(const LayerStep& step, ConstMatrix x, Scratch& scratch) const {
  const std::int64_t num_tokens = x.num_rows;
  const std::int64_t num_pairs = this->num_pairs(num_tokens);
  Routes routes{scratch.take_ints(options_.num_experts + 1), scratch.take_ints(num_pairs),
                scratch.take_floats(num_pairs)};
  // What is of no use behind this.
  Scratch own = scratch;
  const Matrix logits = own.take(num_tokens, options_.num_experts);
  const std::span<std::int32_t> chosen = own.take_ints(num_pairs);
  const std::span<float> weights = own.take_floats(num_pairs);
  router_.apply(step.ops, step.context, x, logits);
  if (step.adapters != nullptr)
    add_adapters(step, step.adapter_queries(), adapted_router_, x, logits);
  const auto num_chosen = static_cast<std::size_t>(options_.routing.num_chosen);
  constexpr std::int64_t kTokensAtOnce = 16;
  step.context.pool->parallel_for(
      (num_tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * kTokensAtOnce;
        for (std::int64_t token = begin; token < std::min(begin + kTokensAtOnce, num_tokens);
             ++token) {
          const std::size_t first = static_cast<std::size_t>(token) * num_chosen;
          ExpertChoice(options_.routing,
                       {logits.row(token), static_cast<std::size_t>(options_.num_experts)})
              .run(chosen.subspan(first, num_chosen), weights.subspan(first, num_chosen));
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
  return std::min(num_pairs(num_tokens), std::max(num_tokens, kFew));
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
  const std::optional<Updates> updates = take_updates(step, x.num_rows, scratch);
  for (std::int64_t row = 0; row < out.num_rows; ++row)
    std::fill_n(out.row(row), out.num_cols, 0.0f);

  const bool scales_input = options_.routing.scales_input;
  std::size_t first = 0;  // of the experts whose results are kept
  const auto add_results = [&](std::size_t end) {
    const auto begin = static_cast<std::size_t>(routes.first[first]);
    const std::size_t count = static_cast<std::size_t>(routes.first[end]) - begin;
    const Matrix rows = first_rows(results, static_cast<std::int64_t>(count));
    finish_results(step, routes, updates ? &*updates : nullptr, first, end, rows);
    std::span<const float> weights = routes.weights.subspan(begin, count);
    if (scales_input) weights = {};
    add_weighted(*step.context.pool, rows, routes.tokens.subspan(begin, count), weights, out);
    first = end;
  };
  for (std::size_t expert = 0; expert < experts_.size(); ++expert) {
    const std::int32_t begin = routes.first[expert];
    const std::int32_t end = routes.first[expert + 1];
    if (begin == end) continue;
    if (end - routes.first[first] > results.num_rows) add_results(expert);
    const Matrix of_expert(results.row(begin - routes.first[first]), end - begin, results.num_cols);
    if (experts_[expert] == nullptr) {  // another rank has it
      step.device.fill_zero(
          of_expert.data,
          static_cast<std::size_t>(of_expert.num_rows * of_expert.num_cols) * sizeof(float));
      continue;
    }
    const Matrix rows = first_rows(gathered, end - begin);
    step.ops.gather_rows(step.context,
                         {.x = x,
                          .rows = routes.tokens.data() + begin,
                          .factors = scales_input ? routes.weights.data() + begin : nullptr,
                          .out = rows});
    const AdapterRows adapted =
        updates ? adapted_rows(step, routes, expert, *updates) : AdapterRows{};
    if (adapted.num_rows == 0) {
      experts_[expert]->multiply(step, {.x = rows, .out = of_expert});
      continue;
    }
    const Matrix shrunk(updates->shrunk.row(begin - routes.first[first]), adapted.num_rows,
                        updates->shrunk.num_cols);
    multiply_updated(step, adapted, *updates, expert, rows, shrunk, of_expert);
  }
  add_results(experts_.size());
}

std::optional<Experts::Updates> Experts::take_updates(const LayerStep& step,
                                                      std::int64_t num_tokens,
                                                      Scratch& scratch) const {
  if (step.adapters == nullptr || adapted_.empty()) return std::nullopt;
  const AdapterRows& all = step.adapter_queries();
  const auto updates_one = [&](const AdapterWeight* weights) {
    return std::ranges::any_of(adapted_, [&](const AdaptedExpert& expert) {
      return weights[expert.gate_up.target].a != nullptr ||
             weights[expert.down.target].a != nullptr;
    });
  };
  if (all.num_rows == 0 || std::none_of(all.adapters, all.adapters + all.num_adapters, updates_one))
    return std::nullopt;
  const std::int64_t num_gates = any_expert().down().spec.num_cols;
  Updates updates{
      .adapter_of_token = scratch.take_ints(num_tokens),
      .first_row = scratch.take_ints(all.num_adapters + 2),
      .rows = scratch.take_ints(num_tokens),
      .adapter_of_row = scratch.take_ints(num_tokens),
      .gate_up = scratch.take(num_tokens, 2 * num_gates),
      .hidden = scratch.take(num_tokens, num_gates),
      .shrunk = scratch.take(num_result_rows(num_tokens), step.adapters->shrunk.num_cols)};
  std::ranges::fill(updates.adapter_of_token, -1);
  for (std::int64_t i = 0; i < all.num_rows; ++i)
    updates.adapter_of_token[static_cast<std::size_t>(all.rows[i])] = all.adapter_of_row[i];
  // Rows that no adapter fills are summed over ranks as well.
  if (has_parts_)
    std::fill_n(updates.shrunk.data, updates.shrunk.num_rows * updates.shrunk.num_cols, 0.0f);
  return updates;
}

AdapterRows Experts::adapted_rows(const LayerStep& step, const Routes& routes, std::size_t expert,
                                  const Updates& updates) const {
  const AdapterRows& all = step.adapter_queries();
  const AdaptedExpert& adapted = adapted_[expert];
  const auto is_updated = [&](std::int32_t adapter) {
    if (adapter < 0) return false;
    const AdapterWeight* const weights = all.adapters[adapter];
    return weights[adapted.gate_up.target].a != nullptr ||
           weights[adapted.down.target].a != nullptr;
  };
  const auto begin = static_cast<std::size_t>(routes.first[expert]);
  const auto end = static_cast<std::size_t>(routes.first[expert + 1]);
  // first_row[a + 1] is where the next row of adapter a goes.
  std::ranges::fill(updates.first_row, 0);
  for (const std::int32_t token : routes.tokens.subspan(begin, end - begin))
    if (const std::int32_t adapter = updates.adapter_of_token[static_cast<std::size_t>(token)];
        is_updated(adapter))
      ++updates.first_row[static_cast<std::size_t>(adapter) + 2];
  std::partial_sum(updates.first_row.begin(), updates.first_row.end(), updates.first_row.begin());
  for (std::size_t pair = begin; pair < end; ++pair) {
    const std::int32_t adapter =
        updates.adapter_of_token[static_cast<std::size_t>(routes.tokens[pair])];
    if (!is_updated(adapter)) continue;
    const auto place =
        static_cast<std::size_t>(updates.first_row[static_cast<std::size_t>(adapter) + 1]++);
    updates.rows[place] = static_cast<std::int32_t>(pair - begin);
    updates.adapter_of_row[place] = adapter;
  }
  return {.adapters = all.adapters,
          .first_row = updates.first_row.data(),
          .rows = updates.rows.data(),
          .adapter_of_row = updates.adapter_of_row.data(),
          .num_adapters = all.num_adapters,
          .num_rows = updates.first_row[static_cast<std::size_t>(all.num_adapters)]};
}

void Experts::multiply_updated(const LayerStep& step, const AdapterRows& rows,
                               const Updates& updates, std::size_t expert, ConstMatrix x,
                               Matrix shrunk, Matrix out) const {
  const AdaptedExpert& adapted = adapted_[expert];
  const Matrix gate_up = first_rows(updates.gate_up, x.num_rows);
  const Matrix hidden = first_rows(updates.hidden, x.num_rows);
  std::fill_n(gate_up.data, gate_up.num_rows * gate_up.num_cols, 0.0f);
  add_adapters(step, rows, adapted.gate_up, x, gate_up);
  experts_[expert]->multiply(step,
                             {.x = x, .out = out, .gate_up_update = gate_up, .hidden = hidden});
  if (!has_parts_) return add_adapters(step, rows, adapted.down, hidden, out);
  step.ops.adapter_shrink(step.context, {.x = hidden,
                                         .rows = rows,
                                         .target = adapted.down.target,
                                         .type = step.adapters->type,
                                         .k_shards = adapted.down.k_shards,
                                         .out = shrunk});
}

void Experts::finish_results(const LayerStep& step, const Routes& routes, const Updates* updates,
                             std::size_t begin, std::size_t end, Matrix results) const {
  add_over_ranks(step, results);
  if (updates != nullptr && has_parts_) {
    add_over_ranks(step, first_rows(updates->shrunk, results.num_rows));
    for (std::size_t expert = begin; expert < end; ++expert) {
      const std::int64_t row = routes.first[expert] - routes.first[begin];
      const AdapterRows rows = adapted_rows(step, routes, expert, *updates);
      if (rows.num_rows == 0) continue;
      step.ops.adapter_expand(
          step.context, {.x = {updates->shrunk.row(row), rows.num_rows, updates->shrunk.num_cols},
                         .rows = rows,
                         .target = adapted_[expert].down.target,
                         .type = step.adapters->type,
                         .out = {results.row(row), routes.first[expert + 1] - routes.first[expert],
                                 results.num_cols}});
    }
    std::fill_n(updates->shrunk.data, results.num_rows * updates->shrunk.num_cols, 0.0f);
  }
  if (!options_.expert.has_bias) return;
  for (std::size_t expert = begin; expert < end; ++expert) {
    const std::int32_t row = routes.first[expert];
    const std::int32_t count = routes.first[expert + 1] - row;
    if (count == 0) continue;
    step.ops.add_bias(step.context,
                      {.bias = down_bias(expert),
                       .out = {results.row(row - routes.first[begin]), count, results.num_cols}});
  }
}

void Experts::forward_on_device(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const std::int64_t num_pairs = this->num_pairs(x.num_rows);
  const bool scales_input = options_.routing.scales_input;
  Scratch scratch = step.scratch;
  const Matrix logits = scratch.take(x.num_rows, options_.num_experts);
  const Matrix results = scratch.take(num_pairs, out.num_cols);
  router_.apply(step.ops, step.context, x, logits);
  if (step.adapters != nullptr)
    add_adapters(step, step.adapter_queries(), adapted_router_, x, logits);
  const RouteExpertsArgs routes{.logits = logits,
                                .routing = options_.routing,
                                .experts = scratch.take_ints(num_pairs).data(),
                                .weights = scratch.take_floats(num_pairs).data(),
                                .pair_weights = scratch.take_floats(num_pairs).data(),
                                .pairs = scratch.take_ints(num_pairs).data(),
                                .first_pair = scratch.take_ints(options_.num_experts + 1).data(),
                                .tokens = scratch.take_ints(num_pairs).data()};
  step.ops.route_experts(step.context, routes);
  if (scales_input) {
    const Matrix scaled = scratch.take(num_pairs, x.num_cols);
    step.ops.gather_rows(
        step.context,
        {.x = x, .rows = routes.tokens, .factors = routes.pair_weights, .out = scaled});
    x = scaled;
  }
  if (mine_.count != options_.num_experts)
    step.device.fill_zero(
        results.data,
        static_cast<std::size_t>(results.num_rows * results.num_cols) * sizeof(float));
  step.ops.experts_mlp(step.context, {.x = x,
                                      .gate_up = any_expert().gate_up().spec,
                                      .down = any_expert().down().spec,
                                      .gate_up_data = gate_ups_.data(),
                                      .down_data = downs_.data(),
                                      .gate_up_biases = gate_up_biases_.data(),
                                      .num_experts = options_.num_experts,
                                      .first_pair = routes.first_pair,
                                      .tokens = scales_input ? nullptr : routes.tokens,
                                      .activation = options_.expert.activation,
                                      .clamp = options_.expert.clamp,
                                      .out = results});
  add_over_ranks(step, results);
  step.ops.add_experts(step.context, {.rows = results,
                                      .num_chosen = options_.routing.num_chosen,
                                      .pairs = routes.pairs,
                                      .weights = scales_input ? nullptr : routes.weights,
                                      .experts = routes.experts,
                                      .biases = down_biases_.data(),
                                      .out = out});
}

MixerMemory Experts::memory_on_device(const OpTable& ops,
                                      std::int64_t max_num_tokens) const noexcept {
  const std::int64_t num_tokens = std::min(max_num_tokens, kDeviceTokensAtOnce);
  const std::int64_t num_pairs = this->num_pairs(num_tokens);
  const std::int64_t hidden_size = options_.expert.hidden_size;
  const std::int64_t scaled =
      options_.routing.scales_input ? Scratch::padded_bytes(num_pairs, hidden_size) : 0;
  // Rows of x: of tokens, or of pairs.
  const std::int64_t num_rows = options_.routing.scales_input ? num_pairs : num_tokens;
  return {.scratch_bytes = Scratch::padded_bytes(num_tokens, options_.num_experts) +
                           Scratch::padded_bytes(num_pairs, hidden_size) + scaled +
                           5 * Scratch::padded_bytes(1, num_pairs) +
                           Scratch::padded_bytes(1, options_.num_experts + 1),
          .workspace_bytes = std::max(
              ops.matmul_workspace_bytes(router_.spec(), num_tokens),
              ops.experts_mlp_workspace_bytes(any_expert().gate_up().spec, any_expert().down().spec,
                                              num_rows, num_pairs))};
}

MixerMemory Experts::memory(Device& device, const MixerLimits& limits) const noexcept {
  const std::int64_t num_tokens = limits.max_num_tokens;
  if (!device.is_host()) return memory_on_device(device.ops(), num_tokens);
  const std::int64_t num_pairs = this->num_pairs(num_tokens);
  const std::int64_t hidden_size = options_.expert.hidden_size;
  const std::int64_t routing =
      Scratch::padded_bytes(1, options_.num_experts + 1) + 2 * Scratch::padded_bytes(1, num_pairs);
  const std::int64_t choosing = Scratch::padded_bytes(num_tokens, options_.num_experts) +
                                2 * Scratch::padded_bytes(1, num_pairs) +
                                Scratch::padded_bytes(1, options_.num_experts);
  std::int64_t computing = Scratch::padded_bytes(num_tokens, hidden_size) +
                           Scratch::padded_bytes(num_result_rows(num_tokens), hidden_size);
  if (limits.adapter_ranks > 0)  // Updates
    computing += 3 * Scratch::padded_bytes(1, num_tokens) +
                 Scratch::padded_bytes(1, num_tokens + 2) +
                 Scratch::padded_bytes(num_tokens, 2 * any_expert().down().spec.num_cols) +
                 Scratch::padded_bytes(num_tokens, any_expert().down().spec.num_cols) +
                 Scratch::padded_bytes(num_result_rows(num_tokens), limits.adapter_ranks);
  MixerMemory memory{
      .scratch_bytes = routing + std::max(choosing, computing),
      .workspace_bytes = device.ops().matmul_workspace_bytes(router_.spec(), num_tokens)};
  for (const auto& expert : experts_)
    if (expert != nullptr)
      memory.workspace_bytes =
          std::max(memory.workspace_bytes, expert->memory(device, limits).workspace_bytes);
  return memory;
}

namespace {

MlpParts shared_parts(const std::string& name, const ExpertsOptions& options,
                      const SharedExpertOptions& shared) {
  const std::string prefix = name + "." + std::string(shared.name) + ".";
  const std::int64_t hidden_size = options.expert.hidden_size;
  const auto part = [&](std::string_view matrix, std::int64_t num_rows) {
    return WeightLoader::Part{prefix + std::string(matrix), num_rows, {0, num_rows}};
  };
  const MlpNames names;
  return {part(names.gate, shared.intermediate_size), part(names.up, shared.intermediate_size),
          part(names.down, hidden_size)};
}

MlpOptions shared_options(MlpOptions options, std::int64_t intermediate_size) {
  options.intermediate_size = intermediate_size;
  options.is_whole = false;
  return options;
}

}  // namespace

ExpertsWithShared::ExpertsWithShared(WeightLoader& loader, const std::string& name,
                                     const ExpertsOptions& options,
                                     const SharedExpertOptions& shared)
    : hidden_size_(options.expert.hidden_size),
      experts_(loader, name, options),
      shared_(loader, shared_parts(name, options, shared),
              shared_options(options.expert, shared.intermediate_size)) {
  if (shared.gate_name.empty()) return;
  const std::vector<WeightLoader::Part> gate = {
      {name + "." + std::string(shared.gate_name), 1, {0, 1}}};
  gate_.emplace(loader, gate, hidden_size_, false, MatrixRole::kRouter);
  adapted_gate_.target = loader.add_adapter_target(gate, hidden_size_, {0, hidden_size_});
}

void ExpertsWithShared::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  experts_.forward(step, x, out);
  Scratch scratch = step.scratch;
  const Matrix shared = scratch.take(x.num_rows, out.num_cols);
  const Matrix gate = scratch.take(x.num_rows, 1);
  LayerStep inner = step;
  inner.scratch = scratch;
  shared_.forward(inner, x, shared);
  if (!gate_) {
    // Without a weight it is a sum alone.
    step.ops.add_rms_norm(step.context, {.x = shared, .residual = out, .out = shared});
    return;
  }
  gate_->apply(step.ops, step.context, x, gate);
  if (step.adapters != nullptr) add_adapters(step, step.adapter_queries(), adapted_gate_, x, gate);
  step.ops.add_gated(step.context, {.x = shared, .gate = gate, .out = out});
}

MixerMemory ExpertsWithShared::memory(Device& device, const MixerLimits& limits) const noexcept {
  MixerMemory memory = experts_.memory(device, limits);
  const MixerMemory of_shared = shared_.memory(device, limits);
  memory.scratch_bytes =
      std::max(memory.scratch_bytes, Scratch::padded_bytes(limits.max_num_tokens, hidden_size_) +
                                         Scratch::padded_bytes(limits.max_num_tokens, 1) +
                                         of_shared.scratch_bytes);
  memory.workspace_bytes = std::max(memory.workspace_bytes, of_shared.workspace_bytes);
  if (gate_)
    memory.workspace_bytes =
        std::max(memory.workspace_bytes,
                 device.ops().matmul_workspace_bytes(gate_->spec(), limits.max_num_tokens));
  return memory;
}

}  // namespace troupe
