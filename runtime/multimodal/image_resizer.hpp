#pragma once
// Resizing images exactly as the libraries do that models were trained with.

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "runtime/multimodal/image.hpp"

namespace troupe {

/// Filters, numbered as in Pillow and in preprocessor_config.json ("resample").
enum class ResizeFilter : std::uint8_t {
  kNearest = 0,
  kLanczos = 1,
  kBilinear = 2,
  kBicubic = 3,
  kBox = 4,
  kHamming = 5,
};

/// Whose arithmetic. Both filter rows and columns one after the other with whole-number weights
/// and keep bytes in between.
enum class ResizeKind : std::uint8_t {
  kTorchvision,  ///< interpolate(antialias=True) on bytes: weights of 16 bits, rows first.
                 ///< Knows nearest (exact), bilinear and bicubic.
  kPillow,       ///< Pillow 13: weights of 22 bits; columns first where that is less work
};

/// Whether the kind supports the filter.
[[nodiscard]] bool supports_filter(ResizeKind kind, ResizeFilter filter) noexcept;

/// A part of an image: columns x0 to x1, rows y0 to y1, ends excluded.
struct ImageBox {
  std::int32_t x0 = 0;
  std::int32_t y0 = 0;
  std::int32_t x1 = 0;
  std::int32_t y1 = 0;

  bool operator==(const ImageBox&) const = default;
};

/// `box` of the image, as an image of its own, resized to width x height; the aspect ratio is not
/// kept. Bit for bit what the library gives. Pre: the box is not empty and within the image; width
/// and height are positive; supports_filter(kind, filter).
[[nodiscard]] Image resize_image(const Image& image, const ImageBox& box, std::int32_t width,
                                 std::int32_t height, ResizeFilter filter, ResizeKind kind);
[[nodiscard]] Image resize_image(const Image& image, std::int32_t width, std::int32_t height,
                                 ResizeFilter filter, ResizeKind kind);
/// The same, its rows given to `sink` from the top one on; a row lasts as long as the call.
void resize_image_rows(const Image& image, const ImageBox& box, std::int32_t width,
                       std::int32_t height, ResizeFilter filter, ResizeKind kind,
                       const std::function<void(const std::uint8_t* row)>& sink);

}  // namespace troupe
