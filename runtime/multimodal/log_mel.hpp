#pragma once
// Features of sound for speech recognition, as transformers' WhisperFeatureExtractor has them.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

/// preprocessor_config.json.
struct LogMelConfig {
  std::int64_t num_mels = 80;          ///< feature_size
  std::int64_t sampling_rate = 16000;  ///< Hz
  std::int64_t hop_length = 160;       ///< samples from one frame to the next
  std::int64_t fft_size = 400;         ///< samples of a frame
  std::int64_t num_samples = 480000;   ///< of a window of sound

  [[nodiscard]] std::int64_t num_frames() const noexcept { return num_samples / hop_length; }
};

/// Owns the window, the mel filters and the factors of the Fourier transform. Constant after it is
/// made: several threads may use it.
class LogMel {
 public:
  /// Pre: all sizes are above 0; hop_length divides num_samples; fft_size <= num_samples.
  explicit LogMel(const LogMelConfig& config);

  /// Of a whole sound: [samples / hop_length, num_mels], frame by frame: the logarithm (base 10) of
  /// the power in each band of the mel scale (Slaney's) under a Hann window, no more than 8 below
  /// the largest, plus 4, divided by 4. `samples` in [-1, 1]; fewer than num_samples are filled up
  /// with silence.
  [[nodiscard]] std::vector<float> frames(std::span<const float> samples) const;
  /// [num_mels, num_frames] of a model's input, zero where there are fewer frames.
  /// Pre: frames: [at most num_frames, num_mels].
  [[nodiscard]] std::vector<float> window(std::span<const float> frames) const;

  [[nodiscard]] const LogMelConfig& config() const noexcept { return config_; }
  /// [fft_size / 2 + 1, num_mels].
  [[nodiscard]] std::span<const double> filters() const noexcept { return filters_; }

 private:
  struct Complex {
    double re = 0;
    double im = 0;
  };
  /// The Fourier transform of `count` elements of `in`, `stride` apart; by the smallest factor of
  /// the count (Cooley and Tukey). `scratch` is as large as `out`.
  void transform(const double* in, std::int64_t stride, std::span<Complex> out,
                 std::span<Complex> scratch) const;

  LogMelConfig config_;
  std::vector<double> window_;
  std::vector<double> filters_;
  std::vector<Complex> roots_;  ///< exp(-2 pi i k / fft_size)
};

}  // namespace troupe
