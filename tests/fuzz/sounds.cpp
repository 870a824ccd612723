// Sounds from arbitrary bytes, and the fields of a form that asks for what is said in one.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/check.hpp"
#include "runtime/multimodal/audio_decoder.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const AudioLimits limits{.max_encoded_bytes = 1 << 20, .max_seconds = 20};
  const auto samples = decode_audio(std::as_bytes(std::span(data, size)), 16000, limits);
  if (!samples.ok()) {
    CHECK(!samples.error().message.empty());
    return 0;
  }
  CHECK(!samples->empty());
  return 0;
}
