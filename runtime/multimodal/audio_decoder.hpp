#pragma once
// Sounds from the bytes of a file: WAV, FLAC, OGG (Vorbis, Opus), MP3 and what else libsndfile
// reads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// What a client's sound may cost.
struct AudioLimits {
  std::size_t max_encoded_bytes = std::size_t{25} << 20;  ///< as OpenAI and vLLM have it
  double max_seconds = 4 * 3600;
};

/// The sound at `sampling_rate`, its channels averaged, in [-1, 1] (16 bits: divided by 32768).
/// Errors: kInvalidArgument (empty or damaged data, a limit exceeded), kUnsupported (another
/// format); they name value and limit.
[[nodiscard]] Result<std::vector<float>> decode_audio(std::span<const std::byte> encoded,
                                                      std::int64_t sampling_rate,
                                                      const AudioLimits& limits = {});

/// At another rate: by a windowed sinc whose cut-off is below half of the lower rate.
[[nodiscard]] std::vector<float> resample(std::span<const float> samples, std::int64_t from_rate,
                                          std::int64_t to_rate);

}  // namespace troupe
