#include "runtime/worker/sampling_math.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace troupe {

namespace {

Error not_a_number(std::size_t index) {
  return {ErrorCode::kInternal,
          "the model's logits are not finite: NaN or +inf at token " + std::to_string(index)};
}

constexpr std::size_t kBlock = 16;

/// exp(x) for x <= 0, x raised to -87: x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial in r
/// (the coefficients of Cephes' expf).
inline float exp_nonpositive(float x) noexcept {
  constexpr auto kSmallest = std::bit_cast<std::uint32_t>(-87.0f);
  constexpr float kLn2High = 0.693359375f;  // n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  // Of two numbers that are not positive, the larger one has the smaller bits.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  x = std::bit_cast<float>(bits < kSmallest ? bits : kSmallest);
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float sum = 1.9875691500e-4f;
  sum = sum * r + 1.3981999507e-3f;
  sum = sum * r + 8.3334519073e-3f;
  sum = sum * r + 4.1665795894e-2f;
  sum = sum * r + 1.6666665459e-1f;
  sum = sum * r + 5.0000001201e-1f;
  sum = sum * r * r + r + 1;
  const std::int32_t exponent_bits = (std::bit_cast<std::int32_t>(shifted) + 127) << 23;
  return sum * std::bit_cast<float>(exponent_bits);
}

/// Whether any of a block's values is above `limit`, or NaN.
inline bool any_above(const float* block, float limit) noexcept {
  std::uint32_t num_above = 0;
  for (std::size_t i = 0; i < kBlock; ++i) num_above += block[i] <= limit ? 0u : 1u;
  return num_above != 0;
}

}  // namespace

Result<std::size_t> index_of_largest(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  std::size_t best = logits.size();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    // Most blocks have nothing, and are passed over by vector instructions.
    while (i + kBlock <= logits.size() && !any_above(&logits[i], largest)) i += kBlock;
    if (i == logits.size()) break;
    if (logits[i] <= largest) continue;  // false for NaN
    if (!std::isfinite(logits[i])) return not_a_number(i);
    largest = logits[i];
    best = i;
  }
  if (best == logits.size()) {
    return invalid_argument("the sampling parameters leave no token that may be sampled");
  }
  return best;
}

void exp_differences(std::span<const float> logits, float largest, std::span<float> out) noexcept {
  std::size_t i = 0;
  // Loops of a known length: these become vector instructions at -O2.
  for (; i + kBlock <= logits.size(); i += kBlock) {
    const float* in_block = logits.data() + i;
    float results[kBlock];
    for (std::size_t j = 0; j < kBlock; ++j) results[j] = exp_nonpositive(in_block[j] - largest);
    std::copy_n(results, kBlock, out.data() + i);
  }
  for (; i < logits.size(); ++i) out[i] = exp_nonpositive(logits[i] - largest);
}

double sum_of_exp(std::span<const float> logits, float largest) noexcept {
  std::array<float, 256> weights;
  double sum = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += weights.size()) {
    const auto block = logits.subspan(begin, std::min(weights.size(), logits.size() - begin));
    exp_differences(block, largest, weights);
    sum += sum_of(std::span(weights).first(block.size()));
  }
  return sum;
}

double sum_of(std::span<const float> values) noexcept {
  constexpr std::size_t kNumLanes = 4;
  std::array<double, kNumLanes> lanes{};
  std::size_t i = 0;
  for (; i + kNumLanes <= values.size(); i += kNumLanes) {
    for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
      lanes[lane] += static_cast<double>(values[i + lane]);
    }
  }
  for (; i < values.size(); ++i) lanes[0] += static_cast<double>(values[i]);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

float kth_largest(std::span<const float> values, std::size_t k, std::vector<float>& scratch) {
  CHECK(k >= 1 && k <= values.size(), k, values.size());
  // Twice k candidates are cut back to the best k whenever they are full; what is not above the
  // worst of these is passed over.
  const std::size_t capacity = std::min(2 * k, values.size());
  float threshold = -std::numeric_limits<float>::infinity();
  scratch.clear();
  scratch.reserve(capacity);
  const auto cut = [&] {
    const auto kth = scratch.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(scratch.begin(), kth, scratch.end(), std::greater<>());
    threshold = *kth;
    scratch.resize(k);
  };
  for (const float value : values) {
    if (value <= threshold) continue;
    if (scratch.size() == capacity) cut();
    if (value > threshold) scratch.push_back(value);
  }
  if (scratch.size() < k) return -std::numeric_limits<float>::infinity();
  cut();
  return threshold;
}

}  // namespace troupe
