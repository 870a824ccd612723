#include "runtime/multimodal/audio_decoder.hpp"

#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <numeric>
#include <string>

namespace troupe {
namespace {

/// A file in memory, as libsndfile reads it.
struct MemoryFile {
  std::span<const std::byte> bytes;
  sf_count_t place = 0;

  static MemoryFile& of(void* user) { return *static_cast<MemoryFile*>(user); }
  static sf_count_t size(void* user) { return std::ssize(of(user).bytes); }
  static sf_count_t tell(void* user) { return of(user).place; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    MemoryFile& file = of(user);
    const sf_count_t base = whence == SEEK_SET   ? 0
                            : whence == SEEK_CUR ? file.place
                                                 : std::ssize(file.bytes);
    file.place = std::clamp<sf_count_t>(base + offset, 0, std::ssize(file.bytes));
    return file.place;
  }
  static sf_count_t read(void* out, sf_count_t count, void* user) {
    MemoryFile& file = of(user);
    count = std::clamp<sf_count_t>(count, 0, std::ssize(file.bytes) - file.place);
    if (count > 0)
      std::memcpy(out, file.bytes.data() + file.place, static_cast<std::size_t>(count));
    file.place += count;
    return count;
  }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
};

Error bad_sound(const std::string& reason) {
  return invalid_argument("the sound cannot be read: " + reason, "file");
}

}  // namespace

Result<std::vector<float>> decode_audio(std::span<const std::byte> encoded,
                                        std::int64_t sampling_rate, const AudioLimits& limits) {
  if (encoded.empty()) return bad_sound("it is empty");
  if (encoded.size() > limits.max_encoded_bytes)
    return Error{ErrorCode::kTooLarge,
                 "the sound has " + std::to_string(encoded.size()) + " bytes, at most " +
                     std::to_string(limits.max_encoded_bytes) + " are taken",
                 "file"};
  MemoryFile memory{encoded};
  SF_VIRTUAL_IO io{MemoryFile::size, MemoryFile::seek, MemoryFile::read, MemoryFile::write,
                   MemoryFile::tell};
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(
      sf_open_virtual(&io, SFM_READ, &info, &memory), sf_close);
  if (file == nullptr) return bad_sound(sf_strerror(nullptr));
  if (info.samplerate < 1 || info.channels < 1)
    return bad_sound("it has " + std::to_string(info.channels) + " channels of " +
                     std::to_string(info.samplerate) + " samples a second");
  const auto max_frames =
      static_cast<std::int64_t>(limits.max_seconds * static_cast<double>(info.samplerate));
  constexpr std::int64_t kFramesAtOnce = 1 << 14;
  const auto channels = static_cast<std::int64_t>(info.channels);
  std::vector<float> frames(static_cast<std::size_t>(kFramesAtOnce * channels));
  std::vector<float> samples;
  while (true) {
    const sf_count_t count = sf_readf_float(file.get(), frames.data(), kFramesAtOnce);
    if (count <= 0) break;
    for (std::int64_t frame = 0; frame < count; ++frame) {
      const float* first = frames.data() + frame * channels;
      const float sum = std::accumulate(first, first + channels, 0.0f);
      samples.push_back(sum / static_cast<float>(channels));
    }
    if (std::ssize(samples) > max_frames)
      return invalid_argument("the sound is longer than " +
                                  std::to_string(static_cast<std::int64_t>(limits.max_seconds)) +
                                  " seconds",
                              "file");
  }
  if (sf_error(file.get()) != SF_ERR_NO_ERROR) return bad_sound(sf_strerror(file.get()));
  if (samples.empty()) return bad_sound("it has no samples");
  if (info.samplerate == sampling_rate) return samples;
  return resample(samples, info.samplerate, sampling_rate);
}

std::vector<float> resample(std::span<const float> samples, std::int64_t from_rate,
                            std::int64_t to_rate) {
  constexpr double kZeroCrossings = 24;
  constexpr double kRollOff = 0.945;
  const double ratio = static_cast<double>(from_rate) / static_cast<double>(to_rate);
  const double cutoff = kRollOff * std::min(1.0, 1 / ratio);  // of half the sound's own rate
  const double reach = kZeroCrossings / cutoff;               // samples to each side
  const auto size = static_cast<std::int64_t>(samples.size());
  const auto num_out = static_cast<std::int64_t>(std::ceil(static_cast<double>(size) / ratio));
  // Places between two samples repeat after so many.
  const std::int64_t num_phases = to_rate / std::gcd(from_rate, to_rate);
  const auto num_taps = static_cast<std::int64_t>(std::ceil(reach)) * 2 + 1;
  const auto fraction_of = [&](std::int64_t index) {
    return static_cast<double>(index * from_rate % to_rate) / static_cast<double>(to_rate);
  };
  std::vector<double> taps;
  for (std::int64_t phase = 0; phase < num_phases; ++phase)
    for (std::int64_t tap = 0; tap < num_taps; ++tap) {
      const double distance = static_cast<double>(tap - num_taps / 2) - fraction_of(phase);
      const double angle = std::numbers::pi * distance * cutoff;
      const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
      const double window = std::fabs(distance) >= reach
                                ? 0
                                : std::pow(std::cos(std::numbers::pi * distance / reach / 2), 2);
      taps.push_back(cutoff * sinc * window);
    }
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(num_out));
  for (std::int64_t index = 0; index < num_out; ++index) {
    const std::int64_t first = index * from_rate / to_rate - num_taps / 2;
    const double* phase = taps.data() + index % num_phases * num_taps;
    double sum = 0;
    for (std::int64_t tap = std::max<std::int64_t>(0, -first); tap < num_taps && first + tap < size;
         ++tap)
      sum += phase[tap] * static_cast<double>(samples[static_cast<std::size_t>(first + tap)]);
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

}  // namespace troupe
