#include "runtime/multimodal/log_mel.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

/// Slaney's mel scale: linear below 1 kHz, logarithmic above.
constexpr double kHzPerMel = 200.0 / 3;
constexpr double kLogBeginHz = 1000;
constexpr double kLogBeginMel = kLogBeginHz / kHzPerMel;
const double kLogStep = std::log(6.4) / 27;

double mel_of(double hz) {
  return hz < kLogBeginHz ? hz / kHzPerMel : kLogBeginMel + std::log(hz / kLogBeginHz) / kLogStep;
}
double hz_of(double mel) {
  return mel < kLogBeginMel ? mel * kHzPerMel
                            : kLogBeginHz * std::exp(kLogStep * (mel - kLogBeginMel));
}

/// Triangles of equal area, whose corners are equally spaced on the mel scale: [bins, num_mels].
std::vector<double> mel_filters(const LogMelConfig& config) {
  const double top_hz = static_cast<double>(config.sampling_rate) / 2;
  const std::int64_t num_bins = config.fft_size / 2 + 1;
  const double top_mel = mel_of(std::min(top_hz, 8000.0));
  std::vector<double> corners;
  for (std::int64_t i = 0; i < config.num_mels + 2; ++i)
    corners.push_back(
        hz_of(top_mel * static_cast<double>(i) / static_cast<double>(config.num_mels + 1)));
  std::vector<double> filters;
  for (std::int64_t bin = 0; bin < num_bins; ++bin) {
    const double hz = top_hz * static_cast<double>(bin) / static_cast<double>(num_bins - 1);
    for (std::size_t mel = 0; mel + 2 < corners.size(); ++mel) {
      const double rising = (hz - corners[mel]) / (corners[mel + 1] - corners[mel]);
      const double falling = (corners[mel + 2] - hz) / (corners[mel + 2] - corners[mel + 1]);
      filters.push_back(std::max(0.0, std::min(rising, falling)) * 2 /
                        (corners[mel + 2] - corners[mel]));
    }
  }
  return filters;
}

std::int64_t smallest_factor(std::int64_t n) {
  for (std::int64_t factor = 2; factor * factor <= n; ++factor)
    if (n % factor == 0) return factor;
  return n;
}

/// The sample at a place that may be beyond an end, where the sound is reflected.
std::size_t reflected(std::int64_t place, std::int64_t size) {
  if (place < 0) place = -place;
  if (place >= size) place = 2 * (size - 1) - place;
  return static_cast<std::size_t>(place);
}

}  // namespace

LogMel::LogMel(const LogMelConfig& config) : config_(config), filters_(mel_filters(config)) {
  const auto size = static_cast<double>(config.fft_size);
  for (std::int64_t i = 0; i < config.fft_size; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / size;
    window_.push_back(0.5 - 0.5 * std::cos(angle));
    roots_.push_back({std::cos(angle), -std::sin(angle)});
  }
}

void LogMel::transform(const double* in, std::int64_t stride, std::span<Complex> out,
                       std::span<Complex> scratch) const {
  const auto count = static_cast<std::int64_t>(out.size());
  if (count == 1) {
    out[0] = {*in, 0};
    return;
  }
  const std::int64_t num_parts = smallest_factor(count);
  const std::int64_t part_size = count / num_parts;
  const auto part_of = [&](std::span<Complex> all, std::int64_t part) {
    return all.subspan(static_cast<std::size_t>(part * part_size),
                       static_cast<std::size_t>(part_size));
  };
  for (std::int64_t part = 0; part < num_parts; ++part)
    transform(in + part * stride, stride * num_parts, part_of(scratch, part), part_of(out, part));
  const auto num_roots = static_cast<std::int64_t>(roots_.size());
  for (std::int64_t k = 0; k < count; ++k) {
    Complex sum;
    for (std::int64_t part = 0; part < num_parts; ++part) {
      const Complex& root =
          roots_[static_cast<std::size_t>(part * k % count * (num_roots / count))];
      const Complex& value = part_of(scratch, part)[static_cast<std::size_t>(k % part_size)];
      sum.re += root.re * value.re - root.im * value.im;
      sum.im += root.re * value.im + root.im * value.re;
    }
    out[static_cast<std::size_t>(k)] = sum;
  }
}

std::vector<float> LogMel::frames(std::span<const float> samples) const {
  const auto num_given = static_cast<std::int64_t>(samples.size());
  const std::int64_t num_samples = std::max(num_given, config_.num_samples);
  const std::int64_t size = config_.fft_size;
  const std::int64_t num_bins = size / 2 + 1;
  const std::int64_t num_frames = num_samples / config_.hop_length;
  std::vector<double> frame(static_cast<std::size_t>(size));
  std::vector<Complex> spectrum(frame.size());
  std::vector<Complex> scratch(frame.size());
  std::vector<float> logs;
  logs.reserve(static_cast<std::size_t>(config_.num_mels * num_frames));
  double largest = -1e30;
  for (std::int64_t t = 0; t < num_frames; ++t) {
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::size_t place = reflected(t * config_.hop_length + i - size / 2, num_samples);
      const float sample = place < samples.size() ? samples[place] : 0.0f;
      frame[at] = window_[at] * static_cast<double>(sample);
    }
    transform(frame.data(), 1, spectrum, scratch);
    for (std::int64_t mel = 0; mel < config_.num_mels; ++mel) {
      double power = 0;
      for (std::int64_t bin = 0; bin < num_bins; ++bin) {
        const double filter = filters_[static_cast<std::size_t>(bin * config_.num_mels + mel)];
        if (filter == 0) continue;
        const Complex& value = spectrum[static_cast<std::size_t>(bin)];
        power += filter * (value.re * value.re + value.im * value.im);
      }
      const double log = std::log10(std::max(power, 1e-10));
      largest = std::max(largest, log);
      logs.push_back(static_cast<float>(log));
    }
  }
  for (float& log : logs)
    log = static_cast<float>((std::max(static_cast<double>(log), largest - 8) + 4) / 4);
  return logs;
}

std::vector<float> LogMel::window(std::span<const float> frames) const {
  const auto num_mels = static_cast<std::size_t>(config_.num_mels);
  const auto num_frames = static_cast<std::size_t>(config_.num_frames());
  std::vector<float> window(num_mels * num_frames);
  CHECK(frames.size() <= window.size(), frames.size(), window.size());
  for (std::size_t i = 0; i < frames.size(); ++i)
    window[i % num_mels * num_frames + i / num_mels] = frames[i];
  return window;
}

}  // namespace troupe
