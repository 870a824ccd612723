// Sounds from arbitrary bytes, and the fields of a form that asks for what is said in one.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/check.hpp"
#include "runtime/multimodal/audio_decoder.hpp"
#include "runtime/multimodal/speech_inputs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const AudioLimits limits{.max_encoded_bytes = 1 << 20, .max_seconds = 20};
  const auto samples = decode_audio(std::as_bytes(std::span(data, size)), 16000, limits);
  if (!samples.ok()) {
    CHECK(!samples.error().message.empty());
    return 0;
  }
  CHECK(!samples->empty());
  std::int64_t end = 0;
  for (const SoundWindow& window : sound_windows(*samples, 4000, 16000)) {
    CHECK(window.begin == end && window.end >= window.begin, window.begin, window.end, end);
    CHECK(window.end - window.begin <= 4000, window.begin, window.end);
    end = window.end;
  }
  CHECK(end == std::ssize(*samples), end, samples->size());
  return 0;
}
