#include "tests/kernels/kernel_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

/// Numbers whose sizes are spread as those of a trained matrix, as bf16.
std::vector<std::uint16_t> trained(std::int64_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(n));
  for (std::uint16_t& value : values) value = bf16_bits(normal(random));
  return values;
}

WeightSpec bf16_spec(std::int64_t rows, std::int64_t cols, std::int32_t shards = 1) {
  return {rows, cols, ElementType::kBF16, ComputeMode::kBF16, shards};
}

PackedStore pack(const OpTable& ops, const WeightSpec& spec,
                 const std::vector<std::uint16_t>& values) {
  return {ops, spec, {values.data(), ElementType::kBF16, spec.num_rows, spec.num_cols}};
}

/// A packed matrix made compact; none if it was not worth it.
class CompactStore {
 public:
  CompactStore(const OpTable& ops, const PackedStore& packed, int num_threads = 2)
      : weight_(packed.weight()) {
    const TestContext context(0, num_threads);
    num_bytes_ = ops.compact_bytes(context, weight_.spec, weight_.data);
    memory_.resize(static_cast<std::size_t>(num_bytes_) + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    std::byte* const first = memory_.data() + (64 - address % 64);
    if (num_bytes_ > 0) ops.compact(context, weight_.spec, weight_.data, first);
    weight_.data = first;
    weight_.spec.is_compact = true;
  }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] const PackedWeight& weight() const { return weight_; }

 private:
  PackedWeight weight_;
  std::int64_t num_bytes_ = 0;
  std::vector<std::byte> memory_;
};

std::vector<const OpTable*> tables_with_compact() {
  std::vector<const OpTable*> tables;
  for (const OpTable* ops : all_tables())
    if (ops->compact != nullptr) tables.push_back(ops);
  if (tables.empty()) BOOST_TEST_MESSAGE("not tested: no instruction set here has compact weights");
  return tables;
}

Floats product(const OpTable& ops, const PackedWeight& weight, const Floats& x, std::int64_t m,
               std::int32_t first_shard = 0, std::int32_t num_shards = 0, int num_threads = 2) {
  const WeightSpec& spec = weight.spec;
  const std::int64_t depth =
      num_shards == 0 ? spec.num_cols : spec.num_cols / spec.k_shards * num_shards;
  Floats out(static_cast<std::size_t>(m * spec.num_rows), -1.0f);
  const TestContext context(ops.matmul_workspace_bytes(spec, m), num_threads);
  ops.matmul(context, {.x = matrix(x, m, depth),
                       .weight = weight,
                       .out = matrix(out, m, spec.num_rows),
                       .first_shard = first_shard,
                       .num_shards = num_shards});
  return out;
}

BOOST_AUTO_TEST_CASE(compact_weights_give_the_same_bits_for_any_rows_sizes_and_threads) {
  for (const OpTable* ops : tables_with_compact()) {
    for (const auto& [n, k, shards] : {std::tuple{64, 34, 1},
                                       {64, 67, 1},
                                       {150, 196, 1},
                                       {128, 2200, 1},
                                       {70, 4 * 35, 4},
                                       {192, 2 * 1030, 2},
                                       {320, 4 * 512, 4}}) {
      const PackedStore packed = pack(*ops, bf16_spec(n, k, shards), trained(n * k, 1));
      const CompactStore compact(*ops, packed);
      BOOST_TEST_REQUIRE(compact.num_bytes() > 0, n << " x " << k);
      for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 32, 33, 191, 192, 200}) {
        const Floats x = random_floats(m * k, 2);
        for (const int num_threads : {1, 4}) {
          const Floats plain = product(*ops, packed.weight(), x, m, 0, 0, num_threads);
          const Floats got = product(*ops, compact.weight(), x, m, 0, 0, num_threads);
          BOOST_TEST(same_bits(plain.data(), got.data(), m * n),
                     ops->name << " " << n << " x " << k << " in " << shards << ", rows " << m);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(part_of_the_shards_of_compact_weights_is_that_part_of_the_sum) {
  constexpr std::int64_t kOutputs = 100;
  constexpr std::int64_t kDepth = 4 * 80;
  for (const OpTable* ops : tables_with_compact()) {
    const PackedStore packed =
        pack(*ops, bf16_spec(kOutputs, kDepth, 4), trained(kOutputs * kDepth, 3));
    const CompactStore compact(*ops, packed);
    for (const auto& [first, count] : {std::pair{0, 1}, {3, 1}, {0, 2}, {2, 2}}) {
      for (const std::int64_t m : {1, 9}) {
        const Floats x = random_floats(m * count * kDepth / 4, 4);
        const Floats plain = product(*ops, packed.weight(), x, m, first, count);
        const Floats got = product(*ops, compact.weight(), x, m, first, count);
        BOOST_TEST(same_bits(plain.data(), got.data(), m * kOutputs), ops->name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(compact_weights_keep_zeros_and_numbers_of_any_size) {
  constexpr std::int64_t kOutputs = 130;
  constexpr std::int64_t kDepth = 1500;
  const std::vector<std::uint16_t> corners = {
      0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x8080,  // zeros, subnormal, the smallest normal
      0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1,          // the largest, infinities, NaN
      0x3f80, 0xbf80, 0x0fff, 0x5555};
  for (const OpTable* ops : tables_with_compact()) {
    std::vector<std::uint16_t> values = trained(kOutputs * kDepth, 5);
    // Every corner in a row of its own, so that what is not finite stays there; and neighbours.
    for (std::size_t i = 0; i < corners.size(); ++i)
      for (const std::size_t col : {0, 1, 2, 31, 700, 701, 1499})
        values[i * 7 * kDepth + col] = corners[i];
    // A row and a column of zeros.
    std::fill_n(values.begin() + 128 * kDepth, kDepth, std::uint16_t{0});
    for (std::size_t row = 0; row < kOutputs; ++row) values[row * kDepth + 40] = 0;
    const PackedStore packed = pack(*ops, bf16_spec(kOutputs, kDepth), values);
    const CompactStore compact(*ops, packed);
    BOOST_TEST_REQUIRE(compact.num_bytes() > 0);
    for (const std::int64_t m : {1, 6, 7, 20}) {
      const Floats x = random_floats(m * kDepth, 6);
      const Floats plain = product(*ops, packed.weight(), x, m);
      const Floats got = product(*ops, compact.weight(), x, m);
      BOOST_TEST(same_bits(plain.data(), got.data(), m * kOutputs), ops->name << " rows " << m);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gated_mlp_of_compact_weights_gives_the_same_bits) {
  constexpr std::int64_t kHidden = 192;
  constexpr std::int64_t kGates = 512;
  for (const OpTable* ops : tables_with_compact()) {
    WeightSpec gate_up_spec = bf16_spec(2 * kGates, kHidden);
    gate_up_spec.is_gated = true;
    const PackedStore gate_up = pack(*ops, gate_up_spec, trained(2 * kGates * kHidden, 7));
    const PackedStore down =
        pack(*ops, bf16_spec(kHidden, kGates, 4), trained(kHidden * kGates, 8));
    const CompactStore compact_gate_up(*ops, gate_up);
    const CompactStore compact_down(*ops, down);
    for (const std::int64_t m : {1, 8, 40}) {
      const Floats x = random_floats(m * kHidden, 9);
      const auto run = [&](const PackedWeight& first, const PackedWeight& second) {
        Floats out(static_cast<std::size_t>(m * kHidden));
        const TestContext context(ops->gated_mlp_workspace_bytes(first.spec, second.spec, m));
        ops->gated_mlp(context, {.x = matrix(x, m, kHidden),
                                 .gate_up = first,
                                 .activation = Activation::kSilu,
                                 .down = second,
                                 .out = matrix(out, m, kHidden)});
        return out;
      };
      const Floats plain = run(gate_up.weight(), down.weight());
      const Floats got = run(compact_gate_up.weight(), compact_down.weight());
      BOOST_TEST(same_bits(plain.data(), got.data(), m * kHidden), ops->name << " rows " << m);
    }
  }
}

BOOST_AUTO_TEST_CASE(compact_weights_take_little_more_than_three_quarters) {
  for (const OpTable* ops : tables_with_compact()) {
    const WeightSpec spec = bf16_spec(1024, 1024);
    const PackedStore packed = pack(*ops, spec, trained(1024 * 1024, 10));
    const double share = static_cast<double>(CompactStore(*ops, packed).num_bytes()) /
                         static_cast<double>(ops->packed_bytes(spec));
    BOOST_TEST(share < 0.76, ops->name << " " << share);
  }
}

BOOST_AUTO_TEST_CASE(the_bytes_of_compact_weights_do_not_depend_on_threads) {
  for (const OpTable* ops : tables_with_compact()) {
    const PackedStore packed = pack(*ops, bf16_spec(200, 300), trained(200 * 300, 11));
    const CompactStore one(*ops, packed, 1);
    const CompactStore four(*ops, packed, 4);
    BOOST_TEST_REQUIRE(one.num_bytes() == four.num_bytes());
    BOOST_TEST(std::memcmp(one.weight().data, four.weight().data,
                           static_cast<std::size_t>(one.num_bytes())) == 0);
  }
}

BOOST_AUTO_TEST_CASE(incompressible_weights_are_left_unchanged) {
  for (const OpTable* ops : tables_with_compact()) {
    const TestContext context;
    // Exponents of every size.
    std::vector<std::uint16_t> any(128 * 128);
    std::mt19937 random(12);
    for (std::uint16_t& value : any) value = static_cast<std::uint16_t>(random());
    const PackedStore packed = pack(*ops, bf16_spec(128, 128), any);
    BOOST_TEST(ops->compact_bytes(context, packed.weight().spec, packed.weight().data) == 0);
    // Other numbers, and those that another unit multiplies.
    for (const auto& [type, mode] : {std::pair{ElementType::kF32, ComputeMode::kBF16},
                                     {ElementType::kF16, ComputeMode::kBF16},
                                     {ElementType::kBF16, ComputeMode::kF32}}) {
      const StoredWeights stored(type, 128, 128, 13);
      const PackedStore other(*ops, {128, 128, type, mode, 1}, stored.view());
      BOOST_TEST(ops->compact_bytes(context, other.weight().spec, other.weight().data) == 0);
    }
    WeightSpec quantized = bf16_spec(64, 64);
    quantized.quantized = QuantizedType::kInt8;
    quantized.group_size = 64;
    BOOST_TEST(ops->compact_bytes(context, quantized, nullptr) == 0);
  }
}

}  // namespace
}  // namespace troupe
