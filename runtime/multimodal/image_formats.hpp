#pragma once
// One decoder per format, for image_decoder.cpp, and what they have in common.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/multimodal/image_decoder.hpp"

namespace troupe {

/// An image as it is stored.
struct StoredImage {
  Image image;
  int orientation = 1;  ///< as in EXIF, 1 to 8: what must be done to show it upright
};

/// Pre: `encoded` starts as files of the format do. Errors: see decode_image.
Result<StoredImage> decode_jpeg(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background);
Result<StoredImage> decode_png(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background);
Result<StoredImage> decode_webp(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background);
Result<StoredImage> decode_gif(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background);
Result<StoredImage> decode_bmp(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background);
Result<StoredImage> decode_tiff(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background);

/// See stored_as_rgb. Pre: as above. (GIF has palettes only.)
bool jpeg_is_rgb(std::span<const std::byte> encoded);
bool png_is_rgb(std::span<const std::byte> encoded);
bool webp_is_rgb(std::span<const std::byte> encoded);
bool bmp_is_rgb(std::span<const std::byte> encoded);
bool tiff_is_rgb(std::span<const std::byte> encoded);

/// Errors: kInvalidArgument (a side is 0, or a limit is exceeded).
Result<void> check_image_size(std::string_view format, std::uint64_t width, std::uint64_t height,
                              const ImageLimits& limits);

/// An image of that size, all bytes 0. Pre: check_image_size accepts it.
Image blank_image(std::uint64_t width, std::uint64_t height);

/// a * b / 255, rounded: Pillow's MULDIV255.
constexpr std::uint32_t divided_by_255(std::uint32_t product) noexcept {
  const std::uint32_t sum = product + 128;
  return ((sum >> 8) + sum) >> 8;
}
/// A channel's value pasted on that of the background with this opacity.
constexpr std::uint8_t pasted(std::uint32_t value, std::uint32_t alpha,
                              std::uint32_t background) noexcept {
  return static_cast<std::uint8_t>(divided_by_255(background * (255 - alpha) + value * alpha));
}

/// Little-endian and big-endian numbers. Pre: they are within `bytes`.
inline std::uint32_t byte_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return std::to_integer<std::uint32_t>(bytes[at]);
}
inline std::uint32_t u16_le(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return byte_at(bytes, at) | byte_at(bytes, at + 1) << 8;
}
inline std::uint32_t u32_le(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return u16_le(bytes, at) | u16_le(bytes, at + 2) << 16;
}
inline std::uint32_t u16_be(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1);
}
inline std::uint32_t u32_be(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return u16_be(bytes, at) << 16 | u16_be(bytes, at + 2);
}

}  // namespace troupe
