#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

constexpr ElementType kAllTypes[] = {ElementType::kF32, ElementType::kBF16, ElementType::kF16};

/// x w^T + bias in double precision; x rounded to bf16 first where the unit does so.
std::vector<double> reference_product(const Floats& x, const Floats& w, const Floats& bias,
                                      std::int64_t m, std::int64_t n, std::int64_t k,
                                      bool round_x) {
  std::vector<double> product;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(j)]);
      for (std::int64_t l = 0; l < k; ++l) {
        float a = x[static_cast<std::size_t>(i * k + l)];
        if (round_x) a = bf16_value(bf16_bits(a));
        sum += static_cast<double>(a) * static_cast<double>(w[static_cast<std::size_t>(j * k + l)]);
      }
      product.push_back(sum);
    }
  }
  return product;
}

Floats product(const OpTable& ops, const PackedWeight& weight, const Floats& x, std::int64_t m,
               const Floats& bias = {}, int num_threads = 2) {
  const WeightSpec& spec = weight.spec;
  Floats out(static_cast<std::size_t>(m * spec.num_rows), -1.0f);
  const TestContext context(ops.matmul_workspace_bytes(spec, m), num_threads);
  ops.matmul(context, {.x = matrix(x, m, spec.num_cols),
                       .weight = weight,
                       .bias = bias.empty() ? nullptr : bias.data(),
                       .out = matrix(out, m, spec.num_rows)});
  return out;
}

BOOST_AUTO_TEST_CASE(products_equal_double_precision_for_every_set_type_mode_and_odd_size) {
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : kAllTypes) {
      for (const ComputeMode mode : {ComputeMode::kF32, ComputeMode::kBF16}) {
        for (const std::int64_t m : {1, 2, 3, 5, 7, 16, 17, 33}) {
          for (const auto& [n, k] : {std::pair{1, 1}, {3, 7}, {64, 64}, {65, 33}, {130, 100}}) {
            const StoredWeights stored(type, n, k, 1);
            const WeightSpec spec{n, k, type, mode, 1};
            const PackedStore packed(*ops, spec, stored.view());
            const Floats x = random_floats(m * k, 2);
            const Floats bias = random_floats(n, 3);
            const bool rounds =
                mode == ComputeMode::kBF16 && type == ElementType::kBF16 && has_bf16_unit(*ops);
            const double error =
                worst_error(product(*ops, packed.weight(), x, m, bias),
                            reference_product(x, stored.values, bias, m, n, k, rounds));
            BOOST_TEST(error < 1e-5, ops->name << " type " << int(type) << " mode " << int(mode)
                                               << " m " << m << " n " << n << " k " << k
                                               << " error " << error);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(long_sums_stay_accurate) {
  constexpr std::int64_t kDepth = 8192;
  const StoredWeights stored(ElementType::kBF16, 20, kDepth, 1);
  const Floats x = random_floats(2 * kDepth, 2);
  for (const OpTable* ops : all_backends()) {
    const WeightSpec spec{20, kDepth, ElementType::kBF16, ComputeMode::kF32, 1};
    const PackedStore packed(*ops, spec, stored.view());
    const double error = worst_error(product(*ops, packed.weight(), x, 2),
                                     reference_product(x, stored.values, {}, 2, 20, kDepth, false));
    BOOST_TEST(error < 5e-5, ops->name << " error " << error);
  }
}

BOOST_AUTO_TEST_CASE(a_row_has_the_same_bits_alone_and_among_any_others_on_any_number_of_threads) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kOutputs = 150;
  constexpr std::int64_t kDepth = 196;
  for (const OpTable* ops : all_tables()) {
    for (const ElementType type : kAllTypes) {
      for (const ComputeMode mode : {ComputeMode::kF32, ComputeMode::kBF16}) {
        for (const std::int32_t shards : {1, 4}) {
          const StoredWeights stored(type, kOutputs, kDepth, 4);
          const WeightSpec spec{kOutputs, kDepth, type, mode, shards};
          const PackedStore packed(*ops, spec, stored.view());
          const Floats x = random_floats(kRows * kDepth, 5);
          const Floats all = product(*ops, packed.weight(), x, kRows, {}, 1);
          for (std::int64_t m = 1; m <= kRows; m += m < 36 ? 1 : 7) {
            // The last m rows of x, so that rows change their place in the batch.
            const Floats tail(x.end() - m * kDepth, x.end());
            const Floats part = product(*ops, packed.weight(), tail, m, {}, m % 2 == 0 ? 2 : 4);
            BOOST_TEST(same_bits(part.data(), all.data() + (kRows - m) * kOutputs, m * kOutputs),
                       ops->name << " type " << int(type) << " mode " << int(mode) << " shards "
                                 << shards << " rows " << m);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(shards_are_reduced_alone_and_added_as_a_tree) {
  constexpr std::int64_t kOutputs = 70;
  constexpr std::int64_t kDepth = 4 * 35;
  constexpr std::int64_t kRows = 3;
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : kAllTypes) {
      for (const ComputeMode mode : {ComputeMode::kF32, ComputeMode::kBF16}) {
        const StoredWeights stored(type, kOutputs, kDepth, 6);
        const WeightSpec spec{kOutputs, kDepth, type, mode, 4};
        const PackedStore packed(*ops, spec, stored.view());
        const Floats x = random_floats(kRows * kDepth, 7);
        const Floats whole = product(*ops, packed.weight(), x, kRows);
        const auto partial = [&](std::int32_t first, std::int32_t count) {
          const ConstMatrix columns{x.data() + first * 35, kRows, count * 35, kDepth};
          Floats out(kRows * kOutputs);
          const TestContext context(ops->matmul_workspace_bytes(spec, kRows));
          ops->matmul(context, {.x = columns,
                                .weight = packed.weight(),
                                .out = matrix(out, kRows, kOutputs),
                                .first_shard = first,
                                .num_shards = count});
          return out;
        };
        const Floats s[] = {partial(0, 1), partial(1, 1), partial(2, 1), partial(3, 1)};
        const Floats left = partial(0, 2);
        const Floats right = partial(2, 2);
        Floats tree(whole.size());
        Floats halves(whole.size());
        for (std::size_t i = 0; i < whole.size(); ++i) {
          tree[i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
          halves[i] = left[i] + right[i];
        }
        const auto n = static_cast<std::int64_t>(whole.size());
        BOOST_TEST(same_bits(whole.data(), tree.data(), n), ops->name);
        BOOST_TEST(same_bits(whole.data(), halves.data(), n), ops->name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_worker_with_its_part_of_the_columns_computes_its_subtree) {
  constexpr std::int64_t kOutputs = 40;
  constexpr std::int64_t kDepth = 128;
  for (const OpTable* ops : all_backends()) {
    const StoredWeights stored(ElementType::kF32, kOutputs, kDepth, 8);
    const Floats x = random_floats(kDepth, 9);
    const WeightSpec spec{kOutputs, kDepth, ElementType::kBF16, ComputeMode::kBF16, 4};
    const PackedStore packed(*ops, spec, stored.view());
    const Floats whole = product(*ops, packed.weight(), x, 1);
    Floats sum(kOutputs);
    for (const std::int64_t half : {0, 1}) {
      Floats columns;
      for (std::int64_t row = 0; row < kOutputs; ++row) {
        const auto first = stored.values.begin() + row * kDepth + half * kDepth / 2;
        columns.insert(columns.end(), first, first + kDepth / 2);
      }
      const WeightSpec part{kOutputs, kDepth / 2, ElementType::kBF16, ComputeMode::kBF16, 2};
      const PackedStore packed_part(*ops, part,
                                    {columns.data(), ElementType::kF32, kOutputs, kDepth / 2});
      const Floats x_part(x.begin() + half * kDepth / 2, x.begin() + (half + 1) * kDepth / 2);
      const Floats partial = product(*ops, packed_part.weight(), x_part, 1);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = half == 0 ? partial[i] : sum[i] + partial[i];
      }
    }
    BOOST_TEST(same_bits(whole.data(), sum.data(), kOutputs), ops->name);
  }
}

BOOST_AUTO_TEST_CASE(parts_packed_one_below_the_other_are_one_matrix) {
  for (const OpTable* ops : all_backends()) {
    const StoredWeights q(ElementType::kBF16, 50, 24, 10);
    const StoredWeights k(ElementType::kF32, 17, 24, 11);
    const WeightSpec spec{67, 24, ElementType::kF32, ComputeMode::kF32, 1};
    PackedStore packed(*ops, spec);
    ops->pack_rows(spec, k.view(), 50, packed.data());
    ops->pack_rows(spec, q.view(), 0, packed.data());
    Floats w = q.values;
    w.insert(w.end(), k.values.begin(), k.values.end());
    const Floats x = random_floats(2 * 24, 12);
    BOOST_TEST(worst_error(product(*ops, packed.weight(), x, 2),
                           reference_product(x, w, {}, 2, 67, 24, false)) < 1e-5);
  }
}

BOOST_AUTO_TEST_CASE(a_row_of_nan_or_infinity_leaves_the_others_alone) {
  constexpr std::int64_t kRows = 7;
  constexpr std::int64_t kDepth = 67;
  constexpr std::int64_t kOutputs = 70;
  for (const OpTable* ops : all_backends()) {
    for (const ComputeMode mode : {ComputeMode::kF32, ComputeMode::kBF16}) {
      const StoredWeights stored(ElementType::kBF16, kOutputs, kDepth, 13);
      const WeightSpec spec{kOutputs, kDepth, ElementType::kBF16, mode, 1};
      const PackedStore packed(*ops, spec, stored.view());
      Floats x = random_floats(kRows * kDepth, 14);
      const Floats clean = product(*ops, packed.weight(), x, kRows);
      x[2 * kDepth + 66] = std::nanf("");
      x[5 * kDepth] = std::numeric_limits<float>::infinity();
      const Floats broken = product(*ops, packed.weight(), x, kRows);
      for (std::int64_t row = 0; row < kRows; ++row) {
        const float* got = broken.data() + row * kOutputs;
        if (row == 2 || row == 5) {
          BOOST_TEST(!std::isfinite(got[0]));
        } else {
          BOOST_TEST(same_bits(got, clean.data() + row * kOutputs, kOutputs), ops->name);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(packing_to_another_type_rounds_to_nearest_even) {
  // 1 + 2^-8 lies between two bf16 (1, 1 + 2^-7), 1 + 2^-11 between two f16: both ties go to even.
  const Floats stored = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f,
                         0x1p-24f,       3 * 0x1p-25f,       65519.0f,        -0x1.8p-15f};
  const Floats as_bf16 = {1.0f,     1.0f + 0x1p-6f, 1.0f,     1.0f,
                          0x1p-24f, 3 * 0x1p-25f,   65536.0f, -0x1.8p-15f};
  const Floats as_f16 = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f,     1.0f + 0x1p-9f,
                         0x1p-24f,       0x1p-23f,           65504.0f, -0x1.8p-15f};
  for (const OpTable* ops : all_backends()) {
    for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
      const auto n = static_cast<std::int64_t>(stored.size());
      const WeightSpec spec{n, 1, type, ComputeMode::kF32, 1};
      const PackedStore packed(*ops, spec, {stored.data(), ElementType::kF32, n, 1});
      const Floats got = product(*ops, packed.weight(), {1.0f}, 1);
      BOOST_TEST(got == (type == ElementType::kBF16 ? as_bf16 : as_f16),
                 boost::test_tools::per_element());
    }
  }
}

}  // namespace
}  // namespace troupe
