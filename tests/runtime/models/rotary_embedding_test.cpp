#include "runtime/models/rotary_embedding.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

/// The frequency of pair i, read back from the angle of position 1.
double frequency(const RotaryEmbedding& rope, std::size_t i) {
  const auto half = static_cast<std::size_t>(rope.rotary_dim() / 2);
  return std::atan2(rope.sin()[half + i], rope.cos()[half + i]);
}

BOOST_AUTO_TEST_CASE(frequencies_are_divided_by_what_the_configuration_lists) {
  const RopeConfig plain{.kind = RopeKind::kLinear, .theta = 100, .factor = 2};
  RopeConfig divided = plain;
  divided.divisors = {1, 4};
  const RotaryEmbedding all(plain, 4, 9);
  const RotaryEmbedding some(divided, 4, 9);
  for (std::size_t position = 0; position < 9; ++position)
    BOOST_TEST(some.cos()[2 * position] == all.cos()[2 * position]);
  // A quarter of the frequency: at position 8 the angle of position 2.
  BOOST_TEST(some.cos()[2 * 8 + 1] == all.cos()[2 * 2 + 1]);
  BOOST_TEST(some.sin()[2 * 8 + 1] == all.sin()[2 * 2 + 1]);
}

BOOST_AUTO_TEST_CASE(longrope_takes_its_divisors_by_the_context_that_is_served) {
  const RopeConfig config{.kind = RopeKind::kLongRope,
                          .theta = 100,
                          .original_max_positions = 8,
                          .short_divisors = {1, 2},
                          .long_divisors = {4, 8}};
  const auto matches = [&](std::int64_t num_positions, const std::vector<double>& divisors) {
    const RotaryEmbedding found(config, 4, num_positions);
    const RotaryEmbedding expected({.theta = 100, .divisors = divisors}, 4, num_positions);
    return found.cos() == expected.cos() && found.sin() == expected.sin();
  };
  BOOST_TEST(matches(8, {1, 2}));
  BOOST_TEST(matches(9, {4, 8}));
}

BOOST_AUTO_TEST_CASE(proportional_scaling_leaves_the_last_pairs_as_they_are) {
  const RotaryEmbedding plain({.theta = 1e4}, 8, 2);
  const RotaryEmbedding scaled(
      {.kind = RopeKind::kProportional, .theta = 1e4, .factor = 2, .proportion = 0.5}, 8, 2);
  for (std::size_t i = 0; i < 4; ++i)
    BOOST_TEST(frequency(scaled, i) == (i < 2 ? frequency(plain, i) / 2 : 0.0),
               boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(position_zero_is_not_rotated_and_frequencies_fall_geometrically) {
  const RotaryEmbedding rope({.theta = 1e4}, 8, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    BOOST_TEST(rope.cos()[i] == 1.0f);
    BOOST_TEST(rope.sin()[i] == 0.0f);
    BOOST_TEST(frequency(rope, i) == std::pow(1e4, -static_cast<double>(i) / 4),
               boost::test_tools::tolerance(1e-6));
  }
}

BOOST_AUTO_TEST_CASE(linear_scaling_divides_every_frequency) {
  const RotaryEmbedding plain({.theta = 1e4}, 8, 2);
  const RotaryEmbedding scaled({.kind = RopeKind::kLinear, .theta = 1e4, .factor = 4}, 8, 2);
  for (std::size_t i = 0; i < 4; ++i)
    BOOST_TEST(frequency(scaled, i) == frequency(plain, i) / 4, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(llama3_scaling_keeps_short_waves_and_stretches_long_ones) {
  const RopeConfig config{.kind = RopeKind::kLlama3,
                          .theta = 1e4,
                          .factor = 8,
                          .original_max_positions = 64,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4};
  const RotaryEmbedding plain({.theta = 1e4}, 32, 2);
  const RotaryEmbedding scaled(config, 32, 2);
  for (std::size_t i = 0; i < 16; ++i) {
    const double turns = 64 * frequency(plain, i) / (2 * M_PI);
    const double ratio = frequency(scaled, i) / frequency(plain, i);
    const double expected = turns >= 4   ? 1
                            : turns <= 1 ? 1.0 / 8
                                         : (turns - 1) / 3 + (1 - (turns - 1) / 3) / 8;
    BOOST_TEST(ratio == expected, boost::test_tools::tolerance(1e-5));
  }
}

BOOST_AUTO_TEST_CASE(yarn_ramps_between_its_bounds_and_scales_the_magnitude) {
  // Bounds by hand for dim 64, theta 1e4, length 4096: beta_fast 32 turns at index 10.47, beta_slow
  // 1 turn at index 22.51.
  RopeConfig config{.kind = RopeKind::kYarn,
                    .theta = 1e4,
                    .factor = 4,
                    .original_max_positions = 4096,
                    .attention_factor = 1.25};
  const RotaryEmbedding plain({.theta = 1e4}, 64, 2);
  const auto ratio = [&](const RotaryEmbedding& rope, std::size_t i) {
    return frequency(rope, i) / frequency(plain, i);
  };
  const RotaryEmbedding whole(config, 64, 2);
  BOOST_TEST(whole.cos()[0] == 1.25f);
  BOOST_TEST(ratio(whole, 10) == 1, boost::test_tools::tolerance(1e-5));
  BOOST_TEST(ratio(whole, 23) == 0.25, boost::test_tools::tolerance(1e-5));
  BOOST_TEST(ratio(whole, 16) == 1 - 0.75 * 6 / 13, boost::test_tools::tolerance(1e-5));
  config.truncate = false;
  const RotaryEmbedding fractional(config, 64, 2);
  const auto index_of = [](double turns) {
    return 64 * std::log(4096 / (turns * 2 * M_PI)) / (2 * std::log(1e4));
  };
  const double expected = 1 - 0.75 * (16 - index_of(32)) / (index_of(1) - index_of(32));
  BOOST_TEST(ratio(fractional, 16) == expected, boost::test_tools::tolerance(1e-5));
}

BOOST_AUTO_TEST_CASE(dynamic_scaling_starts_behind_the_trained_length) {
  const RotaryEmbedding plain({.theta = 1e4}, 8, 64);
  const RotaryEmbedding dynamic(
      {.kind = RopeKind::kDynamic, .theta = 1e4, .factor = 2, .original_max_positions = 32}, 8, 64);
  BOOST_TEST(std::equal(plain.cos().begin(), plain.cos().begin() + 32 * 4, dynamic.cos().begin()));
  // At position 47 the sequence has 48 tokens: the base grows by (2 * 48 / 32 - 1)^(8 / 6).
  const double base = 1e4 * std::pow(2.0, 8.0 / 6);
  for (std::size_t i = 0; i < 4; ++i)
    BOOST_TEST(dynamic.cos()[47 * 4 + i] ==
                   static_cast<float>(std::cos(47 * std::pow(base, -static_cast<double>(i) / 4))),
               boost::test_tools::tolerance(1e-4f));
}

/// The tables of transformers 5 at a late position (torch's arithmetic is float32), for each kind
/// of scaling. There a frequency that differs in its last bit turns by up to 2e-4 more. torch's
/// power function itself is off by a bit in one of a hundred frequencies.
BOOST_AUTO_TEST_CASE(frequencies_are_those_of_the_reference_to_the_last_bit) {
  std::ifstream lines(std::filesystem::path(TROUPE_GOLDEN_DIR) / "rotary" / "tables.jsonl");
  std::size_t num_frequencies = 0;
  std::size_t num_different = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto golden = nlohmann::json::parse(line);
    const auto config = parse_model_config(golden["config"].dump());
    BOOST_REQUIRE_MESSAGE(config.ok(), line);
    const auto position = golden["position"].get<std::size_t>();
    const RotaryEmbedding rope(config->rope, config->head_dim,
                               static_cast<std::int64_t>(position) + 1);
    const auto cos = golden["cos"].get<std::vector<float>>();
    const auto sin = golden["sin"].get<std::vector<float>>();
    BOOST_REQUIRE(cos.size() * 2 == static_cast<std::size_t>(rope.rotary_dim()));
    for (std::size_t i = 0; i < cos.size(); ++i) {
      const std::size_t at = position * cos.size() + i;
      const float difference =
          std::max(std::abs(rope.cos()[at] - cos[i]), std::abs(rope.sin()[at] - sin[i]));
      BOOST_TEST(difference < 5e-4f, golden["config"].dump() << " pair " << i);
      num_different += difference > 3e-7f ? 1 : 0;
      ++num_frequencies;
    }
  }
  BOOST_TEST_MESSAGE(num_different << " of " << num_frequencies << " differ");
  BOOST_TEST(num_frequencies > 1000u);
  BOOST_TEST(num_different * 50 < num_frequencies);
}

BOOST_AUTO_TEST_CASE(tables_that_would_take_too_much_memory_are_refused_with_the_limit) {
  // 128 elements of f32 for each position.
  const std::int64_t most = (std::int64_t{2} << 30) / 512;
  BOOST_TEST(RotaryEmbedding::check_size({}, 128, most).ok());
  BOOST_TEST(RotaryEmbedding::check_size({.partial_rotary_factor = 0.5}, 128, 2 * most).ok());
  const auto refused = RotaryEmbedding::check_size({}, 128, 1 << 28);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message ==
             "max_model_len is 268435456, the tables of its rotary embedding would take "
             "137438953472 bytes; at most 4194304 positions are supported");
}

BOOST_AUTO_TEST_CASE(a_part_of_a_head_may_be_rotated) {
  const RotaryEmbedding rope({.theta = 1e4, .partial_rotary_factor = 0.5}, 16, 2);
  BOOST_TEST(rope.rotary_dim() == 8);
  BOOST_TEST(rope.cos().size() == 8u);
}

}  // namespace
}  // namespace troupe
