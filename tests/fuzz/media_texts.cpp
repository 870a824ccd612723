// data: URLs, preprocessor_config.json and mm_processor_kwargs from arbitrary bytes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/data_url.hpp"
#include "runtime/multimodal/image_processor.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/media_io.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  constexpr std::size_t kMaxBytes = 1000;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = decode_data_url(text, kMaxBytes); bytes.ok())
    CHECK(bytes->size() <= kMaxBytes);
  if (size > (1 << 16)) return 0;
  (void)image_identifier({.model_id = "model", .processor_kwargs = text, .media_io_kwargs = text});
  (void)parse_media_io_kwargs("", text);
  const auto processor = ImageProcessor::parse(text, "fuzz");
  const auto kwargs = nlohmann::json::parse(text, nullptr, false);
  if (kwargs.is_discarded()) return 0;
  const auto defaults = ImageProcessor::parse("{}", "fuzz");
  (void)defaults->with_kwargs(kwargs);
  if (kwargs.is_object()) (void)hashed_processor_kwargs(text, text);
  return 0;
}
