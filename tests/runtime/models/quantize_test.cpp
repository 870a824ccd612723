#include "runtime/models/quantize.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "runtime/models/half_floats.hpp"

namespace troupe {
namespace {

struct BlockCase {
  TensorType type;
  std::vector<std::pair<std::size_t, std::uint16_t>> scales;  ///< byte offset, f16 bits
  std::vector<std::pair<std::size_t, float>> expected;
  double sum;
  double weighted_sum;  ///< element i times i + 1
};

// Byte i is 37 i + 11, but for the scales. What it means was computed by llama.cpp's gguf package.
const std::vector<BlockCase> kBlocks = {
    {TensorType::kQ4_0,
     {{0, 0x3800}},
     {{0, -1.5f}, {1, 1.0f}, {15, -4.0f}, {16, -1.5f}, {31, 0.0f}},
     -10.5,
     -259.0},
    {TensorType::kQ8_0,
     {{0, 0x3400}},
     {{0, 21.25f}, {1, 30.5f}, {15, -32.0f}, {16, -22.75f}, {31, -12.0f}},
     -44.0,
     -2020.0},
    {TensorType::kQ4_K,
     {{0, 0x3000}, {2, 0x3800}},
     {{0, 17.125f}, {1, -25.5f}, {31, -2.25f}, {32, -9.5f}, {128, 47.625f}, {255, -9.25f}},
     3109.0,
     530357.0},
    {TensorType::kQ6_K,
     {{208, 0x2c00}},
     {{0, -89.4375f}, {15, -19.875f}, {32, 14.4375f}, {100, 157.6875f}, {255, -3.75f}},
     288.25,
     49026.25},
    {TensorType::kQ4_1,
     {{0, 0x3800}, {2, 0x3c00}},
     {{0, 8.5f}, {1, 3.0f}, {15, 6.0f}, {16, 5.5f}, {31, 7.0f}},
     154.5,
     2519.5},
    {TensorType::kQ5_0,
     {{0, 0x3800}},
     {{0, 4.5f}, {1, -1.0f}, {15, -6.0f}, {16, 7.0f}, {31, 0.5f}},
     7.5,
     56.0},
    {TensorType::kQ5_1,
     {{0, 0x3400}, {2, 0xb800}},
     {{0, 4.25f}, {1, 5.5f}, {15, 7.0f}, {16, 4.25f}, {31, 0.75f}},
     110.25,
     1711.25},
    {TensorType::kQ2_K,
     {{80, 0x3000}, {82, 0x3800}},
     {{0, 4.125f},
      {17, -1.5f},
      {31, -1.5f},
      {32, -1.25f},
      {100, -3.625f},
      {128, -0.375f},
      {255, -0.75f}},
     -477.625,
     -70832.25},
    {TensorType::kQ3_K,
     {{108, 0x2c00}},
     {{0, 5.0625f},
      {17, 8.0f},
      {31, 4.0f},
      {32, -1.375f},
      {100, 0.0f},
      {128, 0.125f},
      {255, 2.625f}},
     59.875,
     11071.5625},
    {TensorType::kQ5_K,
     {{0, 0x3000}, {2, 0x3800}},
     {{0, 79.125f},
      {17, -25.5f},
      {31, -2.25f},
      {32, 3.5f},
      {100, 14.5f},
      {128, 125.625f},
      {255, -1.75f}},
     10831.0,
     1587183.0},
    {TensorType::kIQ4_NL,
     {{0, 0x3400}},
     {{0, -8.75f}, {1, 6.25f}, {15, -31.75f}, {16, -8.75f}, {31, 0.25f}},
     -64.25,
     -1729.75},
    {TensorType::kIQ4_XS,
     {{0, 0x2c00}},
     {{0, 4.0625f},
      {17, 2.1875f},
      {31, 2.1875f},
      {32, 28.4375f},
      {100, 2.5f},
      {128, -36.5625f},
      {255, -1.0f}},
     -687.8125,
     -130695.875}};

BOOST_AUTO_TEST_CASE(blocks_mean_what_they_mean_to_llama_cpp) {
  for (const BlockCase& block : kBlocks) {
    const TypeBlock size = type_block(block.type);
    std::vector<std::byte> bytes(static_cast<std::size_t>(size.num_bytes));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
    for (const auto& [offset, bits] : block.scales)
      std::memcpy(bytes.data() + offset, &bits, sizeof bits);
    const TensorView tensor{block.type, {1, size.num_elements}, bytes};
    std::vector<float> row(static_cast<std::size_t>(size.num_elements));
    widen_row(tensor, 0, 0, size.num_elements, row.data());
    for (const auto& [i, value] : block.expected)
      BOOST_TEST(row[i] == value, to_string(block.type) << " element " << i << " is " << row[i]);
    double sum = 0;
    double weighted_sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      sum += static_cast<double>(row[i]);
      weighted_sum += static_cast<double>(row[i]) * static_cast<double>(i + 1);
    }
    BOOST_TEST(sum == block.sum, to_string(block.type));
    BOOST_TEST(weighted_sum == block.weighted_sum, to_string(block.type));

    // Any piece of a row is that piece.
    std::vector<float> piece(7);
    widen_row(tensor, 0, 13, 7, piece.data());
    BOOST_TEST(piece == std::vector<float>(row.begin() + 13, row.begin() + 20));
  }
}

BOOST_AUTO_TEST_CASE(quantised_groups_are_as_near_as_their_width_allows) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [type, limit, worst_error] :
       {std::tuple{QuantizedType::kInt8, 127, 0.02}, {QuantizedType::kInt4, 8, 0.2}}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> weights(32);
      for (float& w : weights) w = normal(random) * 0.02f;
      std::vector<std::int8_t> values(weights.size());
      const GroupScale scale = quantize_group(type, weights, values.data());
      BOOST_TEST(scale.minimum == 0.0f);
      BOOST_TEST(round_to_f16(scale.scale) == scale.scale);
      double error = 0;
      double size = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        BOOST_TEST((values[i] >= -limit && values[i] <= limit));
        const auto w = static_cast<double>(weights[i]);
        error += std::pow(static_cast<double>(scale.scale) * values[i] - w, 2);
        size += w * w;
      }
      BOOST_TEST(std::sqrt(error / size) < worst_error);
    }
    std::vector<std::int8_t> values(32, 1);
    BOOST_TEST(quantize_group(type, std::vector<float>(32), values.data()).scale == 0.0f);
    BOOST_TEST(values == std::vector<std::int8_t>(32), boost::test_tools::per_element());
  }
}

/// One candidate after the other, one number after the other.
GroupScale plain_int4_group(std::span<const float> weights, std::vector<std::int8_t>& values) {
  float largest = 0;
  for (const float w : weights)
    if (std::fabs(w) > std::fabs(largest)) largest = w;
  float least = -1;
  GroupScale best;
  for (const float divisor : {-8.0f, -7.5f, -8.5f, -9.0f, -9.5f, -10.0f, 7.0f, 7.5f}) {
    const float scale = round_to_f16(largest / divisor);
    const float factor = scale == 0 ? 0 : 1 / scale;
    std::vector<std::int8_t> numbers;
    float error = 0;
    for (const float w : weights) {
      const float number = std::nearbyint(std::clamp(w * factor, -8.0f, 7.0f));
      numbers.push_back(static_cast<std::int8_t>(number));
      const float difference = number * scale - w;
      error += difference * difference;
    }
    if (least >= 0 && !(error < least)) continue;
    least = error;
    best.scale = scale;
    values = numbers;
  }
  return best;
}

BOOST_AUTO_TEST_CASE(all_scales_tried_at_once_give_the_numbers_of_one_after_the_other) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 0.02f);
  for (std::size_t size = 1; size <= 130; ++size) {
    std::vector<float> weights(size);
    for (float& w : weights) w = size % 3 == 0 ? std::round(normal(random) * 100) : normal(random);
    std::vector<std::int8_t> expected;
    const GroupScale best = plain_int4_group(weights, expected);
    std::vector<std::int8_t> values(size);
    BOOST_TEST(quantize_group(QuantizedType::kInt4, weights, values.data()).scale == best.scale);
    BOOST_TEST(values == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(numbers_are_rounded_to_f16_and_widened_exactly) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float value = widen_f16(static_cast<std::uint16_t>(bits));
    BOOST_REQUIRE(round_to_f16(value) == value);
    BOOST_REQUIRE(round_to_f16(-value) == -value);
    BOOST_REQUIRE(narrow_to_f16(value) == bits);
    BOOST_REQUIRE(narrow_to_f16(-value) == (bits | 0x8000));
    if (bits == 0x7bff) break;
    // Half way between neighbours lies the even one; what is nearer to either is that one.
    const float next = widen_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = (value + next) / 2;
    BOOST_REQUIRE(round_to_f16(middle) == (bits % 2 == 0 ? value : next));
    BOOST_REQUIRE(round_to_f16(std::nextafter(middle, 0.0f)) == value);
    BOOST_REQUIRE(round_to_f16(-std::nextafter(middle, next)) == -next);
  }
  BOOST_TEST(std::isnan(round_to_f16(std::nanf(""))));
  BOOST_TEST(round_to_f16(1.0f + 0x1p-11f) == 1.0f);
  BOOST_TEST(round_to_f16(1.0f + 3 * 0x1p-11f) == 1.0f + 0x1p-9f);
  BOOST_TEST(round_to_f16(1e9f) == 65504.0f);
  BOOST_TEST(round_to_f16(3 * 0x1p-26f) == 0x1p-24f);
}

}  // namespace
}  // namespace troupe
