#pragma once
// How an image must be turned to stand upright, from its metadata.

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/multimodal/image.hpp"

namespace troupe {

/// The orientation (1 to 8) that EXIF data names (TIFF, tag 274; may start with "Exif\0\0"), else
/// XMP data (tiff:Orientation). 1 if neither does, or they are damaged.
[[nodiscard]] int orientation_of(std::span<const std::byte> exif, std::string_view xmp);

/// The image turned or mirrored as the orientation says.
[[nodiscard]] Image upright(Image image, int orientation);

}  // namespace troupe
