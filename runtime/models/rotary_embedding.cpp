#include "runtime/models/rotary_embedding.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace troupe {
namespace {

/// 1 / theta^(2i / dim) for 2i < dim.
std::vector<double> plain_frequencies(double theta, std::int64_t dim) {
  std::vector<double> frequencies(static_cast<std::size_t>((dim + 1) / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1 / std::pow(theta, 2 * static_cast<double>(i) / static_cast<double>(dim));
  return frequencies;
}

/// Llama 3.1: wavelengths beyond the trained length are stretched by `factor`, short ones stay, and
/// those between the two bounds are blended.
void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const auto trained = static_cast<double>(rope.original_max_positions);
  for (double& frequency : frequencies) {
    const double turns = trained * frequency / (2 * std::numbers::pi);  // within the trained length
    const double keep = std::clamp(
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency *= keep + (1 - keep) / rope.factor;
  }
}

/// YaRN, section 3.2 ("NTK-by-parts"): dimensions that turn often within the trained length stay,
/// those that turn rarely are interpolated, with a linear ramp over the index in between.
void scale_yarn(const RopeConfig& rope, std::int64_t dim, std::vector<double>& frequencies) {
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
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolate = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - interpolate) + interpolate / rope.factor;
  }
}

void divide_by(const std::vector<double>& divisors, std::vector<double>& frequencies) {
  for (std::size_t i = 0; i < divisors.size(); ++i) frequencies[i] /= divisors[i];
}

std::vector<double> frequencies_of(const RopeConfig& rope, std::int64_t dim,
                                   std::int64_t num_positions) {
  std::vector<double> frequencies = plain_frequencies(rope.theta, dim);
  switch (rope.kind) {
    case RopeKind::kDefault:
    case RopeKind::kDynamic:
      break;
    case RopeKind::kProportional: {
      const auto num_rotated =
          static_cast<std::size_t>(rope.proportion * static_cast<double>(dim) / 2);
      for (double& frequency : frequencies) frequency /= rope.factor;
      std::fill(frequencies.begin() + static_cast<std::ptrdiff_t>(num_rotated), frequencies.end(),
                0.0);
      break;
    }
    case RopeKind::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeKind::kLlama3:
      scale_llama3(rope, frequencies);
      break;
    case RopeKind::kYarn:
      scale_yarn(rope, dim, frequencies);
      break;
    case RopeKind::kLongRope:
      divide_by(
          num_positions > rope.original_max_positions ? rope.long_divisors : rope.short_divisors,
          frequencies);
      break;
  }
  divide_by(rope.divisors, frequencies);
  return frequencies;
}

/// Dynamic NTK scaling takes its base from the length of the sequence. Here that is the length up
/// to and including the position: as when tokens come one at a time. So a token's keys depend on
/// nothing behind it, which chunked prefill and prefix caching need.
std::vector<double> dynamic_frequencies(const RopeConfig& rope, std::int64_t dim,
                                        std::int64_t position) {
  const auto trained = static_cast<double>(rope.original_max_positions);
  const double length = std::max(static_cast<double>(position + 1), trained);
  const double growth = rope.factor * length / trained - (rope.factor - 1);
  const double exponent = dim > 2 ? static_cast<double>(dim) / static_cast<double>(dim - 2) : 1;
  return plain_frequencies(rope.theta * std::pow(growth, exponent), dim);
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
  std::vector<double> frequencies = frequencies_of(config, frequency_dim, num_positions);
  for (std::int64_t position = 0; position < num_positions; ++position) {
    if (config.kind == RopeKind::kDynamic && position >= config.original_max_positions)
      frequencies = dynamic_frequencies(config, frequency_dim, position);
    float* cos_row = cos_.data() + static_cast<std::size_t>(position) * half;
    float* sin_row = sin_.data() + static_cast<std::size_t>(position) * half;
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * static_cast<float>(frequencies[i]);
      cos_row[i] =
          static_cast<float>(std::cos(static_cast<double>(angle)) * config.attention_factor);
      sin_row[i] =
          static_cast<float>(std::sin(static_cast<double>(angle)) * config.attention_factor);
    }
  }
}

}  // namespace troupe
