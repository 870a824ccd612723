#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "tests/kernels/cuda/device_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 37;
constexpr std::int64_t kExperts = 9;
constexpr std::int64_t kChosen = 3;
constexpr std::int64_t kPairs = kTokens * kChosen;

/// Logits of which no two of a token are equal, but for those of token 0, which all are.
Floats routing_logits() {
  Floats logits = random_floats(kTokens * kExperts, 1, 4.0f);
  std::fill_n(logits.begin(), kExperts, 0.5f);
  return logits;
}

struct Routes {
  std::vector<std::int32_t> experts = std::vector<std::int32_t>(kPairs, -1);
  Floats weights = Floats(kPairs, -1.0f);
  Floats pair_weights = Floats(kPairs, -1.0f);
  std::vector<std::int32_t> pairs = std::vector<std::int32_t>(kPairs, -1);
  std::vector<std::int32_t> first_pair = std::vector<std::int32_t>(kExperts + 1, -1);
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(kPairs, -1);
};

/// All of what route_experts writes, as words one behind the other.
Routes route_on_device(const Floats& logits, const ExpertRouting& routing,
                       const Floats& choice_bias = {}) {
  constexpr std::int64_t kWords = 5 * kPairs + kExperts + 1;
  const auto words = run_on_device(
      std::vector<std::int32_t>(kWords, -1),
      [&](const OpTable& ops, const OpContext& context, std::int32_t* out, const float* values,
          const float* bias) {
        RouteExpertsArgs args{.logits = {values, kTokens, kExperts},
                              .routing = routing,
                              .experts = out,
                              .weights = reinterpret_cast<float*>(out + kPairs),
                              .pair_weights = reinterpret_cast<float*>(out + 4 * kPairs),
                              .pairs = out + 2 * kPairs,
                              .first_pair = out + 5 * kPairs,
                              .tokens = out + 3 * kPairs};
        if (!choice_bias.empty()) args.routing.choice_bias = bias;
        ops.route_experts(context, args);
      },
      logits, choice_bias.empty() ? Floats(1) : choice_bias);
  Routes routes;
  std::copy_n(words.begin(), kPairs, routes.experts.begin());
  std::memcpy(routes.weights.data(), words.data() + kPairs, kPairs * sizeof(float));
  std::copy_n(words.begin() + 2 * kPairs, kPairs, routes.pairs.begin());
  std::copy_n(words.begin() + 3 * kPairs, kPairs, routes.tokens.begin());
  std::memcpy(routes.pair_weights.data(), words.data() + 4 * kPairs, kPairs * sizeof(float));
  std::copy_n(words.begin() + 5 * kPairs, kExperts + 1, routes.first_pair.begin());
  return routes;
}

BOOST_AUTO_TEST_CASE(each_token_goes_to_the_experts_with_the_largest_logits) {
  const Floats logits = routing_logits();
  for (const bool normalises_weights : {false, true}) {
    const Routes routes =
        route_on_device(logits, {.num_chosen = kChosen, .normalises_weights = normalises_weights});
    std::vector<std::vector<std::int32_t>> tokens_of(kExperts);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const float* row = logits.data() + t * kExperts;
      std::vector<std::int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int a, int b) { return row[a] > row[b]; });
      std::vector<std::int32_t> chosen(order.begin(), order.begin() + kChosen);
      double sum = 0;
      for (std::int64_t i = 0; i < (normalises_weights ? kChosen : kExperts); ++i)
        sum += std::exp(static_cast<double>(row[order[static_cast<std::size_t>(i)]]));
      std::ranges::sort(chosen);
      for (std::int64_t i = 0; i < kChosen; ++i) {
        const auto at = static_cast<std::size_t>(t * kChosen + i);
        const std::int32_t expert = chosen[static_cast<std::size_t>(i)];
        BOOST_TEST(routes.experts[at] == expert);
        const double weight = std::exp(static_cast<double>(row[expert])) / sum;
        BOOST_TEST(std::fabs(static_cast<double>(routes.weights[at]) - weight) < 1e-6);
        auto& tokens = tokens_of[static_cast<std::size_t>(expert)];
        const auto number = routes.first_pair[static_cast<std::size_t>(expert)] +
                            static_cast<std::int32_t>(tokens.size());
        BOOST_TEST(routes.pairs[at] == number);
        BOOST_TEST(routes.tokens[static_cast<std::size_t>(number)] == t);
        BOOST_TEST(routes.pair_weights[static_cast<std::size_t>(number)] == routes.weights[at]);
        tokens.push_back(static_cast<std::int32_t>(t));
      }
    }
    BOOST_TEST(routes.first_pair.front() == 0);
    for (std::size_t expert = 0; expert < kExperts; ++expert)
      BOOST_TEST(routes.first_pair[expert + 1] - routes.first_pair[expert] ==
                 static_cast<std::int64_t>(tokens_of[expert].size()));
  }
}

BOOST_AUTO_TEST_CASE(experts_of_the_best_groups_are_chosen_by_biased_scores) {
  const Floats logits = random_floats(kTokens * kExperts, 2, 4.0f);
  const Floats bias = random_floats(kExperts, 3, 1.0f);
  const Routes routes = route_on_device(logits,
                                        {.num_chosen = kChosen,
                                         .is_sigmoid = true,
                                         .normalises_weights = true,
                                         .weight_scale = 2.5f,
                                         .num_groups = 3,
                                         .num_chosen_groups = 2,
                                         .sums_two_best = true},
                                        bias);
  for (std::size_t t = 0; t < kTokens; ++t) {
    std::vector<double> scores;
    for (std::size_t e = 0; e < kExperts; ++e)
      scores.push_back(1 / (1 + std::exp(-static_cast<double>(logits[t * kExperts + e]))));
    const auto biased = [&](int e) {
      return scores[static_cast<std::size_t>(e)] + double{bias[static_cast<std::size_t>(e)]};
    };
    std::vector<std::pair<double, int>> groups;
    for (int group = 0; group < 3; ++group) {
      std::vector<double> sorted;
      for (int i = 0; i < 3; ++i) sorted.push_back(-biased(3 * group + i));
      std::ranges::sort(sorted);
      groups.emplace_back(sorted[0] + sorted[1], group);
    }
    std::ranges::sort(groups);
    std::vector<std::int32_t> order;
    for (int e = 0; e < kExperts; ++e)
      if (e / 3 != groups.back().second) order.push_back(e);
    std::ranges::sort(order, [&](int a, int b) { return biased(a) > biased(b); });
    order.resize(kChosen);
    double sum = 0;
    for (const int e : order) sum += scores[static_cast<std::size_t>(e)];
    std::ranges::sort(order);
    for (std::size_t i = 0; i < kChosen; ++i) {
      BOOST_TEST(routes.experts[t * kChosen + i] == order[i]);
      const double weight = 2.5 * scores[static_cast<std::size_t>(order[i])] / sum;
      BOOST_TEST(std::fabs(double{routes.weights[t * kChosen + i]} - weight) < 1e-6);
    }
  }
}

/// Weights of one expert, on the device; wide or in groups of 8 or 4 bits.
struct Expert {
  Expert(WeightSpec spec, std::uint32_t seed) : store(gpu(), spec) {
    if (spec.quantized == QuantizedType::kNone) {
      const StoredWeights stored(spec.type, spec.num_rows, spec.num_cols, seed);
      gpu().pack_rows(spec, stored.view(), 0, store.data());
    } else {
      std::vector<std::int8_t> values(static_cast<std::size_t>(spec.num_rows * spec.num_cols));
      std::mt19937 random(seed);
      constexpr std::int8_t kTwiceFp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
      const bool is_fp4 = spec.quantized == QuantizedType::kFp4;
      for (std::int8_t& value : values)
        value = is_fp4 ? kTwiceFp4[random() % 16]
                       : static_cast<std::int8_t>(static_cast<int>(random() % 16) - 8);
      Floats scales =
          random_floats(spec.num_rows * spec.k_shards * spec.groups_per_shard(), seed, 0.1f);
      for (float& scale : scales)
        if (is_fp4) scale = std::ldexp(1.0f, static_cast<int>(random() % 8) - 6);
      gpu().pack_quantized_rows(spec, {values.data(), scales.data(), nullptr, spec.num_rows}, 0,
                                store.data());
    }
    there = std::make_unique<DeviceArray<std::byte>>(
        store.data(), static_cast<std::size_t>(gpu().packed_bytes(spec)));
  }
  PackedStore store;
  std::unique_ptr<DeviceArray<std::byte>> there;
};

BOOST_AUTO_TEST_CASE(all_experts_at_once_have_the_bits_of_each_alone) {
  constexpr std::int64_t kInputs = 64;
  constexpr std::int64_t kInner = 96;
  constexpr std::int64_t kOutputs = 70;
  constexpr SwishClamp kClamp{.alpha = 1.7f, .limit = 0.5f};
  const Routes routes =
      route_on_device(routing_logits(), {.num_chosen = kChosen, .normalises_weights = true});
  const Floats x = random_floats(kTokens * kInputs, 5);
  for (const QuantizedType type :
       {QuantizedType::kNone, QuantizedType::kInt8, QuantizedType::kInt4, QuantizedType::kFp4}) {
    WeightSpec gate_up{.num_rows = 2 * kInner, .num_cols = kInputs, .type = ElementType::kBF16};
    gate_up.quantized = type;
    gate_up.group_size = 32;
    WeightSpec down = gate_up;
    gate_up.is_gated = true;
    down.num_rows = kOutputs;
    down.num_cols = kInner;
    down.k_shards = 2;
    std::vector<Expert> gate_ups;
    std::vector<Expert> downs;
    std::vector<const std::byte*> gate_up_data;
    std::vector<const std::byte*> down_data;
    std::vector<std::unique_ptr<DeviceArray<float>>> biases;
    std::vector<const float*> bias_data;
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      gate_up_data.push_back(gate_ups.emplace_back(gate_up, 10 + e).there->data());
      down_data.push_back(downs.emplace_back(down, 30 + e).there->data());
      bias_data.push_back(
          biases.emplace_back(std::make_unique<DeviceArray<float>>(random_floats(2 * kInner, e)))
              ->data());
    }
    const DeviceArray<std::byte> workspace(std::vector<std::byte>(static_cast<std::size_t>(
        gpu().experts_mlp_workspace_bytes(gate_up, down, kTokens, kPairs))));
    const auto with_workspace = [&](OpContext context) {
      context.workspace = {workspace.data(), 0};
      return context;
    };
    const Floats all = run_on_device(
        Floats(kPairs * kOutputs, -1.0f),
        [&](const OpTable& ops, const OpContext& context, float* out, const float* rows,
            const std::int32_t* first_pair, const std::int32_t* tokens,
            const std::byte* const* gate_up_there, const std::byte* const* down_there,
            const float* const* biases_there) {
          ops.experts_mlp(with_workspace(context), {.x = {rows, kTokens, kInputs},
                                                    .gate_up = gate_up,
                                                    .down = down,
                                                    .gate_up_data = gate_up_there,
                                                    .down_data = down_there,
                                                    .gate_up_biases = biases_there,
                                                    .num_experts = kExperts,
                                                    .first_pair = first_pair,
                                                    .tokens = tokens,
                                                    .activation = Activation::kClampedSwish,
                                                    .clamp = kClamp,
                                                    .out = {out, kPairs, kOutputs}});
        },
        x, routes.first_pair, routes.tokens, gate_up_data, down_data, bias_data);
    for (std::size_t e = 0; e < kExperts; ++e) {
      for (std::int32_t pair = routes.first_pair[e]; pair < routes.first_pair[e + 1]; ++pair) {
        const std::int64_t token = routes.tokens[static_cast<std::size_t>(pair)];
        const DeviceArray<float> row(x.data() + token * kInputs, kInputs);
        const DeviceArray<float> out(Floats(kOutputs, -1.0f));
        gpu().gated_mlp(with_workspace(device()), {.x = {row.data(), 1, kInputs},
                                                   .gate_up = {gate_up, gate_up_data[e]},
                                                   .gate_up_bias = bias_data[e],
                                                   .activation = Activation::kClampedSwish,
                                                   .clamp = kClamp,
                                                   .down = {down, down_data[e]},
                                                   .out = {out.data(), 1, kOutputs}});
        BOOST_CHECK(out.values() == rows_of(all, kOutputs, pair, 1));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_token_is_the_weighted_sum_of_its_pairs_in_the_order_of_the_experts) {
  constexpr std::int64_t kCols = 33;
  const Routes routes = route_on_device(routing_logits(), {.num_chosen = kChosen});
  const Floats rows = random_floats(kPairs * kCols, 8);
  const Floats got = run_on_device(
      Floats(kTokens * kCols, -1.0f),
      [&](const OpTable& ops, const OpContext& context, float* out, const float* results,
          const std::int32_t* pairs, const float* weights) {
        ops.add_experts(context, {.rows = {results, kPairs, kCols},
                                  .num_chosen = kChosen,
                                  .pairs = pairs,
                                  .weights = weights,
                                  .out = {out, kTokens, kCols}});
      },
      rows, routes.pairs, routes.weights);
  std::vector<double> want;
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t col = 0; col < kCols; ++col) {
      double sum = 0;
      for (std::size_t i = t * kChosen; i < (t + 1) * kChosen; ++i)
        sum += static_cast<double>(routes.weights[i]) *
               static_cast<double>(rows[static_cast<std::size_t>(routes.pairs[i]) * kCols + col]);
      want.push_back(sum);
    }
  }
  BOOST_TEST(worst_error(got, want) < 1e-6);
}

}  // namespace
}  // namespace troupe
