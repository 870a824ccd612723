// Images of every format from arbitrary bytes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/check.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_processor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const ImageLimits limits{.max_encoded_bytes = 1 << 20, .max_pixels = 1 << 18, .max_side = 4096};
  (void)stored_as_rgb(std::as_bytes(std::span(data, size)));
  const auto image = decode_image(std::as_bytes(std::span(data, size)), limits);
  if (!image.ok()) {
    CHECK(!image.error().message.empty());
    return 0;
  }
  const auto num_pixels =
      static_cast<std::uint64_t>(image->width) * static_cast<std::uint64_t>(image->height);
  CHECK(image->width > 0 && image->height > 0 && num_pixels <= limits.max_pixels);
  CHECK(image->rgb.size() == 3 * num_pixels);
  for (const ResizeKind kind : {ResizeKind::kTorchvision, ResizeKind::kPillow})
    (void)resize_image(*image, 17, 5, ResizeFilter::kBilinear, kind);
  return 0;
}
