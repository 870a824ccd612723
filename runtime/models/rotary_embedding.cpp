#include "runtime/models/rotary_embedding.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace troupe {
namespace {

// All in float32, step by step as the reference computes it (transformers' modeling_rope_utils.py,
// which vLLM shares): a frequency that differs in its last bit is off by 0.004 radians after 64k
// positions.

/// theta^(2i / dim) for 2i < dim.
std::vector<float> powers_of(float theta, std::int64_t dim) {
  std::vector<float> powers(static_cast<std::size_t>((dim + 1) / 2));
  for (std::size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    // Exact before it is rounded.
    powers[i] =
        static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
  }
  return powers;
}

/// 1 / theta^(2i / dim).
std::vector<float> plain_frequencies(float theta, std::int64_t dim) {
  std::vector<float> frequencies = powers_of(theta, dim);
  for (float& frequency : frequencies) frequency = 1 / frequency;
  return frequencies;
}

/// Llama 3.1: wavelengths beyond the trained length are stretched by `factor`, short ones stay, and
/// those between the two bounds are blended.
void scale_llama3(const RopeConfig& rope, std::vector<float>& frequencies) {
  const auto trained = static_cast<float>(rope.original_max_positions);
  const auto factor = static_cast<float>(rope.factor);
  const auto longest =
      static_cast<float>(static_cast<double>(rope.original_max_positions) / rope.low_freq_factor);
  const auto shortest =
      static_cast<float>(static_cast<double>(rope.original_max_positions) / rope.high_freq_factor);
  for (float& frequency : frequencies) {
    const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
    if (wavelength > longest) {
      frequency /= factor;
    } else if (wavelength >= shortest) {
      const float turns = 1 / wavelength * trained;  // within the trained length
      const float keep = (turns - static_cast<float>(rope.low_freq_factor)) /
                         static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      frequency = (1 - keep) * frequency / factor + keep * frequency;
    }
  }
}

/// YaRN, section 3.2 ("NTK-by-parts"): dimensions that turn often within the trained length stay,
/// those that turn rarely are interpolated, with a linear ramp over the index in between.
std::vector<float> yarn_frequencies(const RopeConfig& rope, std::int64_t dim) {
  const auto index_of_turns = [&](double turns) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(rope.original_max_positions) /
                    (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = index_of_turns(rope.beta_fast);
  double high = index_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // a step instead of a ramp
  std::vector<float> frequencies = powers_of(static_cast<float>(rope.theta), dim);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float power = frequencies[i];
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1 - std::clamp(ramp, 0.0f, 1.0f);
    frequencies[i] = 1 / (static_cast<float>(rope.factor) * power) * (1 - keep) + 1 / power * keep;
  }
  return frequencies;
}

std::vector<float> longrope_frequencies(const RopeConfig& rope, std::int64_t dim,
                                        std::int64_t num_positions) {
  const std::vector<double>& divisors =
      num_positions > rope.original_max_positions ? rope.long_divisors : rope.short_divisors;
  std::vector<float> frequencies = powers_of(static_cast<float>(rope.theta), dim);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float divisor = i < divisors.size() ? static_cast<float>(divisors[i]) : 1;
    frequencies[i] = 1 / (divisor * frequencies[i]);
  }
  return frequencies;
}

std::vector<float> frequencies_of(const RopeConfig& rope, std::int64_t dim,
                                  std::int64_t num_positions) {
  std::vector<float> frequencies = plain_frequencies(static_cast<float>(rope.theta), dim);
  const auto stretch = [&] {
    for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
  };
  switch (rope.kind) {
    case RopeKind::kDefault:
    case RopeKind::kDynamic:
      break;
    case RopeKind::kProportional: {
      const auto num_rotated =
          static_cast<std::size_t>(rope.proportion * static_cast<double>(dim) / 2);
      stretch();
      std::fill(frequencies.begin() + static_cast<std::ptrdiff_t>(num_rotated), frequencies.end(),
                0.0f);
      break;
    }
    case RopeKind::kLinear:
      stretch();
      break;
    case RopeKind::kLlama3:
      scale_llama3(rope, frequencies);
      break;
    case RopeKind::kYarn:
      frequencies = yarn_frequencies(rope, dim);
      break;
    case RopeKind::kLongRope:
      frequencies = longrope_frequencies(rope, dim, num_positions);
      break;
  }
  for (std::size_t i = 0; i < rope.divisors.size(); ++i)
    frequencies[i] /= static_cast<float>(rope.divisors[i]);
  return frequencies;
}

/// Dynamic NTK scaling takes its base from the length of the sequence. Here that is the length up
/// to and including the position: as when tokens come one at a time. So a token's keys depend on
/// nothing behind it, which chunked prefill and prefix caching need.
std::vector<float> dynamic_frequencies(const RopeConfig& rope, std::int64_t dim,
                                       std::int64_t position) {
  const auto trained = static_cast<float>(rope.original_max_positions);
  const float length = std::max(static_cast<float>(position + 1), trained);
  const float growth =
      static_cast<float>(rope.factor) * length / trained - static_cast<float>(rope.factor - 1);
  const double exponent = dim > 2 ? static_cast<double>(dim) / static_cast<double>(dim - 2) : 1;
  const auto scale = static_cast<float>(std::pow(static_cast<double>(growth), exponent));
  return plain_frequencies(static_cast<float>(rope.theta) * scale, dim);
}

}  // namespace

Result<void> RotaryEmbedding::check_size(const RopeConfig& config, std::int64_t head_dim,
                                         std::int64_t num_positions) {
  const auto position_bytes =
      config.rotary_dim(head_dim) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t max_positions = kMaxBytes / position_bytes;
  if (num_positions <= max_positions) return {};
  return invalid_argument("max_model_len is " + std::to_string(num_positions) +
                              ", the tables of its rotary embedding would take " +
                              std::to_string(num_positions * position_bytes) + " bytes; at most " +
                              std::to_string(max_positions) + " positions are supported",
                          "max_model_len");
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& config, std::int64_t head_dim,
                                 std::int64_t num_positions)
    : rotary_dim_(config.rotary_dim(head_dim)) {
  const auto half = static_cast<std::size_t>(rotary_dim_ / 2);
  cos_.resize(static_cast<std::size_t>(num_positions) * half);
  sin_.resize(cos_.size());
  const std::int64_t frequency_dim = config.frequency_dim(head_dim);
  std::vector<float> frequencies = frequencies_of(config, frequency_dim, num_positions);
  const auto factor = static_cast<float>(config.attention_factor);
  for (std::int64_t position = 0; position < num_positions; ++position) {
    if (config.kind == RopeKind::kDynamic && position >= config.original_max_positions)
      frequencies = dynamic_frequencies(config, frequency_dim, position);
    float* cos_row = cos_.data() + static_cast<std::size_t>(position) * half;
    float* sin_row = sin_.data() + static_cast<std::size_t>(position) * half;
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      cos_row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
      sin_row[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
    }
  }
}

}  // namespace troupe
