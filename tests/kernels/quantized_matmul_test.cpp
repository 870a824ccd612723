#include "tests/kernels/backend_tables.hpp"

namespace troupe {
namespace {

using namespace testing;

/// A random quantised matrix.
struct Quantized {
  explicit Quantized(const WeightSpec& spec_in) : spec(spec_in) {
    std::mt19937 random(static_cast<std::uint32_t>(spec.num_rows * 31 + spec.num_cols));
    const int limit = spec.quantized == QuantizedType::kInt4 ? 16 : 256;
    values.resize(static_cast<std::size_t>(spec.num_rows * spec.num_cols));
    for (std::int8_t& value : values)
      value = static_cast<std::int8_t>(static_cast<int>(random() % limit) - limit / 2);
    const std::int64_t num_groups = spec.num_rows * spec.k_shards * spec.groups_per_shard();
    scales = random_floats(num_groups, 1, 0.01f);
    minimums = random_floats(num_groups, 2, 0.1f);
    for (Floats* floats : {&scales, &minimums})
      for (float& value : *floats) value = f16_value(f16_bits(value));
  }
  [[nodiscard]] QuantizedRows rows() const {
    return {values.data(), scales.data(), spec.has_minimums ? minimums.data() : nullptr,
            spec.num_rows};
  }
  WeightSpec spec;
  std::vector<std::int8_t> values;
  Floats scales;
  Floats minimums;
};

struct PackedQuantized : PackedStore {
  PackedQuantized(const OpTable& ops, const Quantized& matrix) : PackedStore(ops, matrix.spec) {
    ops.pack_quantized_rows(matrix.spec, matrix.rows(), 0, data());
  }
};

Floats product(const OpTable& ops, const PackedWeight& weight, ConstMatrix x,
               const Floats& bias = {}, std::int32_t first_shard = 0, std::int32_t num_shards = 0,
               int num_threads = 2) {
  Floats out(static_cast<std::size_t>(x.num_rows * weight.spec.num_rows), -1.0f);
  const TestContext context(ops.matmul_workspace_bytes(weight.spec, x.num_rows), num_threads);
  ops.matmul(context, {.x = x,
                       .weight = weight,
                       .bias = bias.empty() ? nullptr : bias.data(),
                       .out = matrix(out, x.num_rows, weight.spec.num_rows),
                       .first_shard = first_shard,
                       .num_shards = num_shards});
  return out;
}

/// The same in the order that ops.hpp promises, one operation after the other.
Floats reference_product(const Quantized& w, ConstMatrix x, const Floats& bias) {
  const WeightSpec& spec = w.spec;
  const std::int64_t depth = spec.num_cols / spec.k_shards;
  const std::int64_t num_groups = spec.groups_per_shard();
  Floats out;
  for (std::int64_t m = 0; m < x.num_rows; ++m) {
    for (std::int64_t n = 0; n < spec.num_rows; ++n) {
      Floats shards;
      for (std::int64_t s = 0; s < spec.k_shards; ++s) {
        volatile float sum = 0.0f;  // every operation is rounded by itself
        for (std::int64_t g = 0; g < num_groups; ++g) {
          const std::int64_t begin = s * depth + g * spec.group_size;
          const std::int64_t end = std::min(begin + spec.group_size, (s + 1) * depth);
          float largest = 0.0f;
          for (std::int64_t k = begin; k < end; ++k)
            largest = std::max(largest, std::fabs(x.row(m)[k]));
          const float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
          const float x_scale = largest / 127.0f;
          std::int32_t dot = 0;
          std::int32_t x_sum = 0;
          for (std::int64_t k = begin; k < end; ++k) {
            const auto number = static_cast<std::int32_t>(std::nearbyint(x.row(m)[k] * factor));
            dot += number * w.values[static_cast<std::size_t>(n * spec.num_cols + k)];
            x_sum += number;
          }
          const auto group = static_cast<std::size_t>((n * spec.k_shards + s) * num_groups + g);
          volatile float scale = w.scales[group] * x_scale;
          volatile float product = static_cast<float>(dot) * scale;
          sum = sum + product;
          if (!spec.has_minimums) continue;
          volatile float scaled_sum = x_scale * static_cast<float>(x_sum);
          volatile float offset = w.minimums[group] * scaled_sum;
          sum = sum + offset;
        }
        shards.push_back(static_cast<float>(sum));
      }
      float sum = shards[0];
      if (shards.size() == 2) sum = shards[0] + shards[1];
      if (shards.size() == 4) sum = (shards[0] + shards[1]) + (shards[2] + shards[3]);
      out.push_back(bias.empty() ? sum : sum + bias[static_cast<std::size_t>(n)]);
    }
  }
  return out;
}

std::vector<WeightSpec> quantized_specs() {
  std::vector<WeightSpec> specs;
  for (const auto& [n, k, shards] : {std::tuple{1, 16, 1},
                                     {3, 40, 2},
                                     {64, 128, 4},
                                     {65, 96, 1},
                                     {130, 516, 4},
                                     {16, 1300, 1}}) {
    for (const auto& [type, group] : {std::pair{QuantizedType::kInt8, 16},
                                      {QuantizedType::kInt8, 32},
                                      {QuantizedType::kInt8, 64},
                                      {QuantizedType::kInt8, 128},
                                      {QuantizedType::kInt8, 512},
                                      {QuantizedType::kInt4, 32},
                                      {QuantizedType::kInt4, 128}}) {
      for (const bool has_minimums : {false, true}) {
        WeightSpec spec{.num_rows = n, .num_cols = k, .k_shards = shards};
        spec.quantized = type;
        spec.group_size = group;
        spec.has_minimums = has_minimums;
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

std::string text(const WeightSpec& spec) {
  return (spec.quantized == QuantizedType::kInt4 ? "int4 " : "int8 ") +
         std::to_string(spec.num_rows) + " x " + std::to_string(spec.num_cols) + " shards " +
         std::to_string(spec.k_shards) + " group " + std::to_string(spec.group_size) +
         (spec.has_minimums ? " with minimums" : "");
}

BOOST_AUTO_TEST_CASE(quantised_products_have_the_bits_of_the_definition_on_every_set) {
  for (const WeightSpec& spec : quantized_specs()) {
    const Quantized w(spec);
    const Floats bias = random_floats(spec.num_rows, 3);
    constexpr std::int64_t kRows = 37;
    const Floats x = random_floats(kRows * spec.num_cols, 4);
    const Floats expected = reference_product(w, matrix(x, kRows, spec.num_cols), bias);
    for (const OpTable* ops : all_backends()) {
      const PackedQuantized packed(*ops, w);
      for (const std::int64_t m : {1, 2, 5, 6, 12, 13, 15, 16, 37}) {
        if (is_emulated(*ops) && m != 1 && m != 37) continue;
        const Floats got =
            product(*ops, packed.weight(), ConstMatrix(x.data(), m, spec.num_cols), bias);
        BOOST_TEST(same_bits(got.data(), expected.data(), m * spec.num_rows),
                   ops->name << " " << text(spec) << " rows " << m);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(quantised_rows_have_the_same_bits_among_many_as_among_few) {
  WeightSpec spec{.num_rows = 130, .num_cols = 1104, .k_shards = 4};
  for (const auto& [type, group] :
       {std::pair{QuantizedType::kInt8, 64}, {QuantizedType::kInt4, 32}}) {
    spec.quantized = type;
    spec.group_size = group;
    const Quantized w(spec);
    constexpr std::int64_t kRows = 530;
    const Floats x = random_floats(kRows * spec.num_cols, 7);
    for (const OpTable* ops : all_backends()) {
      const PackedQuantized packed(*ops, w);
      const Floats all = product(*ops, packed.weight(), matrix(x, kRows, spec.num_cols));
      for (const std::int64_t first : {0, 255, 268, 527}) {
        const Floats few =
            product(*ops, packed.weight(), {x.data() + first * spec.num_cols, 3, spec.num_cols});
        BOOST_TEST(same_bits(few.data(), all.data() + first * spec.num_rows, 3 * spec.num_rows),
                   ops->name << " " << text(spec) << " row " << first);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_worker_with_its_part_of_quantised_columns_computes_its_subtree) {
  for (const OpTable* ops : all_backends()) {
    for (const WeightSpec& spec : quantized_specs()) {
      if (spec.k_shards != 4) continue;
      const Quantized w(spec);
      const PackedQuantized packed(*ops, w);
      const Floats x = random_floats(3 * spec.num_cols, 5);
      const Floats whole = product(*ops, packed.weight(), matrix(x, 3, spec.num_cols));
      const auto half = [&](std::int32_t index) {
        return product(*ops, packed.weight(),
                       {x.data() + index * spec.num_cols / 2, 3, spec.num_cols / 2, spec.num_cols},
                       {}, 2 * index, 2);
      };
      Floats sum = half(0);
      const Floats right = half(1);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
      BOOST_TEST(sum == whole, ops->name << " " << text(spec));
    }
  }
}

BOOST_AUTO_TEST_CASE(numbers_of_4_bits_with_exponents_have_the_bits_of_wide_ones) {
  constexpr std::int8_t kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (const auto& [n, k, shards, group] : {std::tuple{1, 1, 1, 32},
                                            {3, 40, 2, 32},
                                            {65, 96, 1, 32},
                                            {130, 64, 4, 16},
                                            {16, 540, 4, 5}}) {
    WeightSpec spec{.num_rows = n, .num_cols = k, .k_shards = shards};
    spec.quantized = QuantizedType::kFp4;
    spec.group_size = group;
    WeightSpec wide = spec;
    wide.quantized = QuantizedType::kNone;
    std::mt19937 random(static_cast<std::uint32_t>(n));
    std::vector<std::int8_t> values(static_cast<std::size_t>(n * k));
    for (std::int8_t& value : values) value = kTwice[random() % 16];
    Floats scales(static_cast<std::size_t>(n * shards * spec.groups_per_shard()));
    for (float& scale : scales) {
      const int exponent = static_cast<int>(random() % 40) - 30;
      scale = exponent == -30 ? 0.0f : std::ldexp(1.0f, exponent);
    }
    const std::int64_t depth = k / shards;
    Floats numbers;
    for (std::int64_t i = 0; i < n * k; ++i) {
      const std::int64_t shard = i % k / depth;
      const std::int64_t at =
          (i / k * shards + shard) * spec.groups_per_shard() + i % k % depth / spec.group_size;
      numbers.push_back(static_cast<float>(values[static_cast<std::size_t>(i)]) *
                        scales[static_cast<std::size_t>(at)]);
    }
    constexpr std::int64_t kRows = 37;
    const Floats x = random_floats(kRows * k, 4);
    const Floats bias = random_floats(n, 3);
    for (const OpTable* ops : all_backends()) {
      PackedStore packed(*ops, spec);
      ops->pack_quantized_rows(spec, {values.data(), scales.data(), nullptr, n}, 0, packed.data());
      const PackedStore expanded(*ops, wide, {numbers.data(), ElementType::kF32, n, k});
      for (const std::int64_t m : {1, 5, 6, 37}) {
        const ConstMatrix rows(x.data(), m, k);
        const Floats want = product(*ops, expanded.weight(), rows, bias);
        const Floats got = product(*ops, packed.weight(), rows, bias);
        BOOST_TEST(same_bits(got.data(), want.data(), m * n),
                   ops->name << " " << n << " x " << k << " rows " << m);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_is_not_finite_gives_no_number_and_leaves_the_others_alone) {
  WeightSpec spec{.num_rows = 70, .num_cols = 67};
  spec.group_size = 32;
  for (const QuantizedType type : {QuantizedType::kInt8, QuantizedType::kInt4}) {
    spec.quantized = type;
    const Quantized w(spec);
    for (const OpTable* ops : all_backends()) {
      const PackedQuantized packed(*ops, w);
      Floats x = random_floats(4 * 67, 6);
      for (std::int64_t k = 0; k < 67; ++k) x[static_cast<std::size_t>(2 * 67 + k)] = 0.0f;
      const Floats clean = product(*ops, packed.weight(), matrix(x, 4, 67));
      x[66] = std::nanf("");
      x[67 + 3] = -std::numeric_limits<float>::infinity();
      const Floats broken = product(*ops, packed.weight(), matrix(x, 4, 67));
      for (std::size_t n = 0; n < 140; ++n) BOOST_TEST(std::isnan(broken[n]));
      for (std::size_t n = 140; n < 210; ++n) BOOST_TEST(broken[n] == 0.0f);
      BOOST_TEST(same_bits(broken.data() + 140, clean.data() + 140, 140), ops->name);
    }
  }
}

}  // namespace
}  // namespace troupe
