#pragma once
// Images from the bytes of a file: JPEG, PNG, WebP, GIF, BMP, TIFF.

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/result.hpp"
#include "runtime/multimodal/image.hpp"

namespace troupe {

/// What a client's image may cost. Decoding takes up to 16 bytes of memory a pixel.
struct ImageLimits {
  std::size_t max_encoded_bytes = std::size_t{64} << 20;
  std::uint64_t max_pixels = 89'478'485;  ///< where Pillow starts to warn of bombs
  std::uint32_t max_side = 65'535;
  std::uint32_t max_side_ratio = 200;  ///< of the longer side to the other; Qwen2-VL's limit
};

/// The image as vLLM gives it to an image processor: turned upright (EXIF or XMP orientation),
/// transparency pasted on `background`, RGB. Of animations the first frame. The same bytes as
/// Pillow 13 (with the same libjpeg and libwebp), including what it makes of unusual files: a PNG's
/// transparent colour counts for grey and palettes, not for RGB; 16-bit grey is cut to 255.
/// Sizes are read and checked before memory for pixels is taken.
/// Errors: kInvalidArgument (empty, truncated or damaged data, a limit exceeded), kUnsupported
/// (another format, or a rare variant of one); they name what is wrong, and value and limit.
[[nodiscard]] Result<Image> decode_image(std::span<const std::byte> encoded,
                                         const ImageLimits& limits = {},
                                         const ImageColor& background = kWhite);

/// Whether the file's pixels are RGB, without a palette and without alpha: Pillow's mode of it,
/// told from its header. Of damaged data anything.
[[nodiscard]] bool stored_as_rgb(std::span<const std::byte> encoded);

}  // namespace troupe
