#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                       Activation::kClampedSwish};
constexpr SwishClamp kClamp = {.alpha = 1.702f, .limit = 0.75f};

/// act(gate) * up.
double exact(Activation activation, double gate, double up) {
  if (activation == Activation::kSilu) return exact_silu(gate) * up;
  if (activation == Activation::kGeluTanh) return exact_gelu_tanh(gate) * up;
  const double limit{kClamp.limit};
  gate = std::min(gate, limit);
  return gate / (1 + std::exp(-double{kClamp.alpha} * gate)) * (std::clamp(up, -limit, limit) + 1);
}

/// What weights are kept as: wide, or integers made by rounding.
PackedStore pack(const OpTable& ops, const WeightSpec& spec, const Floats& values) {
  if (spec.quantized == QuantizedType::kNone)
    return {ops, spec, {values.data(), ElementType::kF32, spec.num_rows, spec.num_cols}};
  const float largest = spec.quantized == QuantizedType::kInt8 ? 127.0f : 7.0f;
  std::vector<std::int8_t> numbers;
  for (const float value : values)
    numbers.push_back(static_cast<std::int8_t>(std::nearbyint(value * largest)));
  const Floats scales(
      static_cast<std::size_t>(spec.num_rows * spec.k_shards * spec.groups_per_shard()),
      1.0f / largest);
  PackedStore packed(ops, spec);
  ops.pack_quantized_rows(spec, {numbers.data(), scales.data(), nullptr, spec.num_rows}, 0,
                          packed.data());
  return packed;
}

Floats identity(std::int64_t n) {
  Floats values(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * n + i)] = 1.0f;
  return values;
}

WeightSpec exact_spec(std::int64_t rows, std::int64_t cols) {
  return {.num_rows = rows, .num_cols = cols, .type = ElementType::kF32};
}

struct Biases {
  Floats gate_up;
  Floats down;
};

Floats gated_mlp(const OpTable& ops, ConstMatrix x, const PackedWeight& gate_up,
                 Activation activation, const PackedWeight& down, const Biases& biases = {},
                 int num_threads = 2) {
  Floats out(static_cast<std::size_t>(x.num_rows * down.spec.num_rows), -1.0f);
  const TestContext context(ops.gated_mlp_workspace_bytes(gate_up.spec, down.spec, x.num_rows),
                            num_threads);
  ops.gated_mlp(context, {.x = x,
                          .gate_up = gate_up,
                          .gate_up_bias = biases.gate_up.empty() ? nullptr : biases.gate_up.data(),
                          .activation = activation,
                          .clamp = kClamp,
                          .down = down,
                          .down_bias = biases.down.empty() ? nullptr : biases.down.data(),
                          .out = matrix(out, x.num_rows, down.spec.num_rows)});
  return out;
}

/// act(gates) * ups for rows of n of each, computed by a gated MLP whose products change nothing:
/// its input is both side by side.
class Activated {
 public:
  Activated(const OpTable& ops, std::int64_t n)
      : ops_(ops),
        n_(n),
        gate_up_(pack(ops, gate_up_spec(n), identity(2 * n))),
        down_(pack(ops, exact_spec(n, n), identity(n))) {}

  [[nodiscard]] Floats run(Activation activation, const Floats& gates, const Floats& ups) const {
    Floats both;
    for (std::size_t row = 0; row < gates.size(); row += static_cast<std::size_t>(n_)) {
      for (const Floats* part : {&gates, &ups}) {
        const auto first = part->begin() + static_cast<std::ptrdiff_t>(row);
        both.insert(both.end(), first, first + n_);
      }
    }
    const auto num_rows = static_cast<std::int64_t>(gates.size()) / n_;
    return gated_mlp(ops_, matrix(both, num_rows, 2 * n_), gate_up_.weight(), activation,
                     down_.weight());
  }

 private:
  static WeightSpec gate_up_spec(std::int64_t n) {
    WeightSpec spec = exact_spec(2 * n, 2 * n);
    spec.is_gated = true;
    return spec;
  }
  const OpTable& ops_;
  std::int64_t n_;
  PackedStore gate_up_;
  PackedStore down_;
};

BOOST_AUTO_TEST_CASE(activations_of_an_mlp_equal_double_precision) {
  for (const OpTable* ops : all_backends()) {
    for (const std::int64_t n : {1, 7, 16, 33, 64, 100, 200}) {
      const Floats gates = activation_inputs(n);
      const Floats ups = random_floats(n, 15);
      const Activated activated(*ops, n);
      for (const Activation activation : kActivations) {
        std::vector<double> want;
        for (std::size_t i = 0; i < gates.size(); ++i)
          want.push_back(exact(activation, double{gates[i]}, double{ups[i]}));
        BOOST_TEST(worst_error(activated.run(activation, gates, ups), want) < 1e-6,
                   ops->name << " activation " << int(activation) << " of " << n);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(silu_keeps_its_relative_accuracy_far_below_zero) {
  // There it is x exp(x): this shows exp over nearly its whole range.
  for (const OpTable* ops : all_backends()) {
    const Activated activated(*ops, 1);
    for (float value = -80.0f; value < 80.0f; value += 0.37f) {
      const Floats out = activated.run(Activation::kSilu, {value}, {1.0f});
      const double want = exact_silu(static_cast<double>(value));
      BOOST_TEST(std::fabs(static_cast<double>(out[0]) - want) <= 5e-7 * std::fabs(want),
                 ops->name << " at " << value);
    }
  }
}

struct Format {
  const char* name;
  WeightSpec spec;  ///< without sizes
};
const Format kFormats[] = {
    {"f32", {.type = ElementType::kF32}},
    {"bf16", {.type = ElementType::kBF16}},
    {"f16", {.type = ElementType::kF16}},
    {"bf16 unit", {.type = ElementType::kBF16, .mode = ComputeMode::kBF16}},
    // Of quantised weights, type and mode do not count.
    {"int8",
     {.type = ElementType::kBF16,
      .mode = ComputeMode::kBF16,
      .quantized = QuantizedType::kInt8,
      .group_size = 64}},
    {"int4", {.quantized = QuantizedType::kInt4, .group_size = 32}},
};

/// Two packed matrices of random numbers, and biases.
struct Mlp {
  Mlp(const OpTable& table, const WeightSpec& format, std::int64_t in, std::int64_t hidden,
      std::int64_t out, std::int32_t shards)
      : ops(table),
        num_inputs(in),
        gate_up_values(random_floats(2 * hidden * in, 1)),
        gate_up(pack(table, sized(format, 2 * hidden, in, 1, true), gate_up_values)),
        down(
            pack(table, sized(format, out, hidden, shards, false), random_floats(out * hidden, 2))),
        biases{random_floats(2 * hidden, 3), random_floats(out, 4)} {}

  static WeightSpec sized(WeightSpec spec, std::int64_t rows, std::int64_t cols,
                          std::int32_t shards, bool is_gated) {
    spec.num_rows = rows;
    spec.num_cols = cols;
    spec.k_shards = shards;
    spec.is_gated = is_gated;
    return spec;
  }
  [[nodiscard]] Floats run(ConstMatrix x, Activation activation, int num_threads = 2) const {
    return gated_mlp(ops, x, gate_up.weight(), activation, down.weight(), biases, num_threads);
  }

  const OpTable& ops;
  std::int64_t num_inputs;
  Floats gate_up_values;
  PackedStore gate_up;
  PackedStore down;
  Biases biases;
};

BOOST_AUTO_TEST_CASE(an_update_counts_like_a_bias_of_each_row_and_the_activations_are_left) {
  for (const OpTable* ops : all_backends()) {
    for (const Format& format : kFormats) {
      const std::int64_t in = 64;
      const std::int64_t hidden = 96;
      const std::int64_t num_rows = is_emulated(*ops) ? 3 : 37;
      Mlp mlp(*ops, format.spec, in, hidden, 48, 4);
      const Floats x = random_floats(num_rows * in, 9);
      const Floats expected = mlp.run(matrix(x, num_rows, in), Activation::kSilu);
      Floats update;
      for (std::int64_t row = 0; row < num_rows; ++row)
        update.insert(update.end(), mlp.biases.gate_up.begin(), mlp.biases.gate_up.end());
      const auto run = [&](Matrix left) {
        Floats out(static_cast<std::size_t>(num_rows * 48));
        const WeightSpec& gate_up = mlp.gate_up.weight().spec;
        const WeightSpec& down = mlp.down.weight().spec;
        const TestContext context(ops->gated_mlp_workspace_bytes(gate_up, down, num_rows));
        ops->gated_mlp(context, {.x = matrix(x, num_rows, in),
                                 .gate_up = mlp.gate_up.weight(),
                                 .down = mlp.down.weight(),
                                 .down_bias = mlp.biases.down.data(),
                                 .out = matrix(out, num_rows, 48),
                                 .gate_up_update = matrix(update, num_rows, 2 * hidden),
                                 .hidden = left});
        return out;
      };
      Floats left(static_cast<std::size_t>(num_rows * hidden), -9.0f);
      BOOST_CHECK_MESSAGE(run({}) == expected, ops->name << ", " << format.name);
      BOOST_CHECK_MESSAGE(run(matrix(left, num_rows, hidden)) == expected,
                          ops->name << ", " << format.name);
      // The second product of what is left: unrounded, so that only the formats differ.
      Floats again(static_cast<std::size_t>(num_rows * 48));
      const TestContext context(ops->matmul_workspace_bytes(mlp.down.weight().spec, num_rows));
      ops->matmul(context, {.x = matrix(left, num_rows, hidden),
                            .weight = mlp.down.weight(),
                            .bias = mlp.biases.down.data(),
                            .out = matrix(again, num_rows, 48)});
      BOOST_CHECK_MESSAGE(again == expected, ops->name << ", " << format.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_mlp_has_the_bits_of_its_parts_one_after_the_other) {
  for (const OpTable* ops : all_backends()) {
    for (const Format& format : kFormats) {
      for (const auto& [in, hidden, out, shards] : {std::tuple{1, 1, 1, 1},
                                                    {7, 3, 5, 1},
                                                    {64, 32, 64, 1},
                                                    {100, 130, 33, 1},
                                                    {64, 256, 70, 4},
                                                    {96, 72, 40, 4}}) {
        const Mlp mlp(*ops, format.spec, in, hidden, out, shards);
        // The parts: the gates as one matrix, `up` as another, an activation, the second product.
        const auto half = [&](std::int64_t index) {
          const auto size = static_cast<std::ptrdiff_t>(mlp.gate_up_values.size() / 2);
          const auto first = mlp.gate_up_values.begin() + index * size;
          return pack(*ops, Mlp::sized(format.spec, hidden, in, 1, false), {first, first + size});
        };
        const Activated activated(*ops, hidden);
        const PackedStore gate = half(0);
        const PackedStore up = half(1);
        const auto product = [&](const PackedWeight& weight, ConstMatrix x, const float* bias) {
          Floats result(static_cast<std::size_t>(x.num_rows * weight.spec.num_rows));
          ops->matmul(TestContext(ops->matmul_workspace_bytes(weight.spec, x.num_rows)),
                      {.x = x,
                       .weight = weight,
                       .bias = bias,
                       .out = matrix(result, x.num_rows, weight.spec.num_rows)});
          return result;
        };
        for (const std::int64_t num_rows : {1, 5, 16, 37}) {
          const bool is_quantized = format.spec.quantized != QuantizedType::kNone;
          if (is_emulated(*ops) && is_quantized && num_rows != 1 && num_rows != 37) continue;
          const Floats x = random_floats(num_rows * in, 5);
          const ConstMatrix rows = matrix(x, num_rows, in);
          const Floats gates = product(gate.weight(), rows, mlp.biases.gate_up.data());
          const Floats ups = product(up.weight(), rows, mlp.biases.gate_up.data() + hidden);
          for (const Activation activation : kActivations) {
            const Floats values = activated.run(activation, gates, ups);
            const Floats want = product(mlp.down.weight(), matrix(values, num_rows, hidden),
                                        mlp.biases.down.data());
            const Floats got = mlp.run(rows, activation);
            BOOST_TEST(same_bits(got.data(), want.data(), num_rows * out),
                       ops->name << " " << format.name << " " << in << " " << hidden << " " << out
                                 << " rows " << num_rows);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(
    a_row_of_an_mlp_has_the_same_bits_alone_and_among_any_others_on_any_number_of_threads) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kInputs = 96;
  constexpr std::int64_t kOutputs = 70;
  for (const OpTable* ops : all_tables()) {
    for (const Format& format : kFormats) {
      const Mlp mlp(*ops, format.spec, kInputs, 256, kOutputs, 4);
      const Floats x = random_floats(kRows * kInputs, 6);
      const Floats all = mlp.run(matrix(x, kRows, kInputs), Activation::kSilu, 1);
      for (std::int64_t m = 1; m <= kRows; m += m < 18 ? 1 : 9) {
        const ConstMatrix last{x.data() + (kRows - m) * kInputs, m, kInputs};
        const Floats part = mlp.run(last, Activation::kSilu, m % 2 == 0 ? 2 : 4);
        BOOST_TEST(same_bits(part.data(), all.data() + (kRows - m) * kOutputs, m * kOutputs),
                   ops->name << " " << format.name << " rows " << m);
      }
    }
  }
}

}  // namespace
}  // namespace troupe
