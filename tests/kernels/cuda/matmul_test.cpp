#include "tests/kernels/cuda/device_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kBF16, ElementType::kF16};

/// A weight packed by both tables, and an input for it.
struct Case {
  Case(WeightSpec weight_spec, std::int64_t num_rows)
      : spec(weight_spec),
        num_rows(num_rows),
        stored(spec.type, spec.num_rows, spec.num_cols, 1),
        host_weight(reference(), spec, stored.view()),
        packed(gpu(), spec, stored.view()),
        device_weight(packed.data(), static_cast<std::size_t>(gpu().packed_bytes(spec))),
        x(random_floats(num_rows * spec.num_cols, 2)),
        bias(random_floats(spec.num_rows, 3)) {}

  /// The product of rows [first, first + count) of x over some shards.
  [[nodiscard]] auto product(std::int64_t first, std::int64_t count, std::int32_t first_shard = 0,
                             std::int32_t num_shards = 0) const {
    return [=, this](const OpTable& ops, const OpContext& context, float* out, const float* x_data,
                     const float* bias_data) {
      const std::int64_t depth = spec.num_cols / spec.k_shards;
      const std::int64_t num_cols = num_shards == 0 ? spec.num_cols : num_shards * depth;
      PackedWeight weight = host_weight.weight();
      if (&ops == &gpu()) weight.data = device_weight.data();
      ops.matmul(context, {.x = {x_data + first * spec.num_cols + first_shard * depth, count,
                                 num_cols, spec.num_cols},
                           .weight = weight,
                           .bias = num_shards == 0 ? bias_data : nullptr,
                           .out = {out, count, spec.num_rows},
                           .first_shard = first_shard,
                           .num_shards = num_shards});
    };
  }
  [[nodiscard]] Floats unwritten(std::int64_t count) const {
    return Floats(static_cast<std::size_t>(count * spec.num_rows), -1.0f);
  }

  WeightSpec spec;
  std::int64_t num_rows;
  StoredWeights stored;
  PackedStore host_weight;
  PackedStore packed;
  DeviceArray<std::byte> device_weight;
  Floats x;
  Floats bias;
};

BOOST_AUTO_TEST_CASE(products_are_those_of_the_reference) {
  for (const ElementType type : kTypes) {
    for (const std::int32_t k_shards : {1, 2, 4}) {
      for (const std::int64_t num_rows : {1, 7, 16, 17, 70}) {
        const Case c({.num_rows = 131, .num_cols = 92, .type = type, .k_shards = k_shards},
                     num_rows);
        BOOST_TEST(difference_between_tables(c.unwritten(num_rows), c.product(0, num_rows), c.x,
                                             c.bias) < 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_has_the_same_bits_alone_and_among_others) {
  for (const ElementType type : kTypes) {
    constexpr std::int64_t kRows = 70;
    const Case c({.num_rows = 131, .num_cols = 332, .type = type, .k_shards = 4}, kRows);
    const Floats all = run_on_device(c.unwritten(kRows), c.product(0, kRows), c.x, c.bias);
    for (const std::int64_t count : {1, 16, 20}) {
      for (const std::int64_t first : {0, 3, 50}) {
        const Floats some = run_on_device(c.unwritten(count), c.product(first, count), c.x, c.bias);
        BOOST_CHECK(some == rows_of(all, c.spec.num_rows, first, count));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(subtrees_of_the_shards_add_up_to_the_same_bits) {
  constexpr std::int64_t kRows = 5;
  Case c({.num_rows = 33, .num_cols = 100, .type = ElementType::kBF16, .k_shards = 4}, kRows);
  std::fill(c.bias.begin(), c.bias.end(), 0.0f);
  const auto part = [&](std::int32_t first_shard, std::int32_t num_shards) {
    return run_on_device(c.unwritten(kRows), c.product(0, kRows, first_shard, num_shards), c.x,
                         c.bias);
  };
  const Floats whole = part(0, 0);
  const Floats halves[] = {part(0, 2), part(2, 2)};
  const Floats quarters[] = {part(0, 1), part(1, 1), part(2, 1), part(3, 1)};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    BOOST_CHECK_EQUAL(halves[0][i] + halves[1][i], whole[i]);
    BOOST_CHECK_EQUAL((quarters[0][i] + quarters[1][i]) + (quarters[2][i] + quarters[3][i]),
                      whole[i]);
  }
}

BOOST_AUTO_TEST_CASE(gated_mlps_are_those_of_the_reference) {
  for (const ElementType type : kTypes) {
    for (const std::int64_t num_rows : {1, 16, 17, 70}) {
      for (const std::int64_t hidden : {1, 31, 64, 100}) {
        constexpr std::int64_t kInputs = 44;
        constexpr std::int64_t kOutputs = 67;
        const Case gate_up(
            {.num_rows = 2 * hidden, .num_cols = kInputs, .type = type, .is_gated = true},
            num_rows);
        const Case down({.num_rows = kOutputs, .num_cols = hidden, .type = type}, num_rows);
        const DeviceArray<std::byte> workspace(std::vector<std::byte>(static_cast<std::size_t>(
            gpu().gated_mlp_workspace_bytes(gate_up.spec, down.spec, num_rows))));
        for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          const auto run = [&](const OpTable& ops, const OpContext& context, float* out,
                               const float* x, const float* gate_up_bias, const float* down_bias) {
            GatedMlpArgs args{.x = {x, num_rows, kInputs},
                              .gate_up = gate_up.host_weight.weight(),
                              .gate_up_bias = gate_up_bias,
                              .activation = activation,
                              .down = down.host_weight.weight(),
                              .down_bias = down_bias,
                              .out = {out, num_rows, kOutputs}};
            const std::int64_t num_bytes =
                ops.gated_mlp_workspace_bytes(args.gate_up.spec, args.down.spec, num_rows);
            if (&ops != &gpu()) return ops.gated_mlp(TestContext(num_bytes), args);
            args.gate_up.data = gate_up.device_weight.data();
            args.down.data = down.device_weight.data();
            OpContext with_workspace = context;
            with_workspace.workspace = {workspace.data(), static_cast<std::size_t>(num_bytes)};
            ops.gated_mlp(with_workspace, args);
          };
          BOOST_TEST(difference_between_tables(down.unwritten(num_rows), run, gate_up.x,
                                               gate_up.bias, down.bias) < 2e-5);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_are_packed_at_their_rows_and_converted) {
  const StoredWeights q(ElementType::kF32, 5, 24, 1);
  const StoredWeights k(ElementType::kF16, 3, 24, 2);
  const WeightSpec spec = {.num_rows = 8, .num_cols = 24, .type = ElementType::kBF16};
  PackedStore packed(gpu(), spec);
  gpu().pack_rows(spec, k.view(), 5, packed.data());
  gpu().pack_rows(spec, q.view(), 0, packed.data());
  const auto* got = reinterpret_cast<const std::uint16_t*>(packed.data());
  Floats want = q.values;
  want.insert(want.end(), k.values.begin(), k.values.end());
  for (std::size_t i = 0; i < want.size(); ++i) BOOST_CHECK_EQUAL(got[i], bf16_bits(want[i]));
}

}  // namespace
}  // namespace troupe
