#include "runtime/multimodal/image_decoder.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/multimodal/image_formats.hpp"
#include "runtime/multimodal/orientation.hpp"

namespace troupe {
namespace {

constexpr const char* kFormats = "JPEG, PNG, WebP, GIF, BMP and TIFF";

/// What else clients send, to say it by name.
std::string_view other_format(std::string_view head) {
  using namespace std::literals;
  if (head.size() >= 12 && head.substr(4, 4) == "ftyp") {
    const std::string_view brand = head.substr(8, 4);
    if (brand == "avif" || brand == "avis") return "AVIF";
    if (brand.starts_with("hei") || brand.starts_with("hev") || brand == "mif1") return "HEIC";
    return "MP4";
  }
  if (head.starts_with("\0\0\0\x0cjP  "sv)) return "JPEG 2000";
  if (head.starts_with("\xff\x0a"sv) || head.starts_with("\0\0\0\x0cJXL "sv)) return "JPEG XL";
  if (head.starts_with("\0\0\1\0"sv)) return "ICO";
  if (head.starts_with("8BPS"sv)) return "Photoshop";
  if (head.starts_with("%PDF"sv)) return "PDF";
  if (head.substr(0, 1000).find("<svg") != std::string_view::npos) return "SVG";
  if (head.substr(0, 1000).find("<html") != std::string_view::npos ||
      head.substr(0, 1000).find("<!DOCTYPE html") != std::string_view::npos)
    return "HTML";
  return {};
}

struct ImageFormat {
  std::array<std::string_view, 2> heads;  ///< its files start with one of them; "" is none
  std::string_view kind;                  ///< what follows a RIFF file's size; empty: not RIFF
  Result<StoredImage> (*decode)(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background);
  bool (*is_rgb)(std::span<const std::byte> encoded);  ///< null: never

  [[nodiscard]] bool is_format_of(std::string_view head) const {
    return std::ranges::any_of(
               heads, [&](auto start) { return !start.empty() && head.starts_with(start); }) &&
           (kind.empty() || (head.size() >= 12 && head.substr(8, 4) == kind));
  }
};

using namespace std::literals;
constexpr std::array kImageFormats = {
    ImageFormat{{"\xff\xd8\xff"sv}, {}, decode_jpeg, jpeg_is_rgb},
    ImageFormat{{"\x89PNG\r\n\x1a\n"sv}, {}, decode_png, png_is_rgb},
    ImageFormat{{"RIFF"sv}, "WEBP"sv, decode_webp, webp_is_rgb},
    ImageFormat{{"GIF87a"sv, "GIF89a"sv}, {}, decode_gif, nullptr},
    ImageFormat{{"BM"sv}, {}, decode_bmp, bmp_is_rgb},
    ImageFormat{{"II*\0"sv, "MM\0*"sv}, {}, decode_tiff, tiff_is_rgb},
};

std::string_view head_of(std::span<const std::byte> encoded) {
  return {reinterpret_cast<const char*>(encoded.data()), encoded.size()};
}

/// Null: another one.
const ImageFormat* format_of(std::span<const std::byte> encoded) {
  const std::string_view head = head_of(encoded);
  const auto format = std::ranges::find_if(
      kImageFormats, [&](const ImageFormat& known) { return known.is_format_of(head); });
  return format == kImageFormats.end() ? nullptr : &*format;
}

Result<StoredImage> decode_stored(std::span<const std::byte> encoded, const ImageLimits& limits,
                                  const ImageColor& background) {
  if (const ImageFormat* format = format_of(encoded))
    return format->decode(encoded, limits, background);
  const std::string_view other = other_format(head_of(encoded));
  if (!other.empty())
    return Error{ErrorCode::kUnsupported,
                 std::string(other) + " images are not supported; supported are " + kFormats};
  return invalid_argument(
      std::string("the data are not an image of a known format; supported are ") + kFormats);
}

}  // namespace

Result<Image> decode_image(std::span<const std::byte> encoded, const ImageLimits& limits,
                           const ImageColor& background) {
  if (encoded.empty()) return invalid_argument("the image is empty: it has 0 bytes");
  if (encoded.size() > limits.max_encoded_bytes)
    return invalid_argument("the image has " + std::to_string(encoded.size()) +
                            " bytes, the limit is " + std::to_string(limits.max_encoded_bytes));
  ASSIGN_OR_RETURN(StoredImage stored, decode_stored(encoded, limits, background));
  return upright(std::move(stored.image), stored.orientation);
}

bool stored_as_rgb(std::span<const std::byte> encoded) {
  const ImageFormat* format = format_of(encoded);
  return format != nullptr && format->is_rgb != nullptr && format->is_rgb(encoded);
}

Result<void> check_image_size(std::string_view format, std::uint64_t width, std::uint64_t height,
                              const ImageLimits& limits) {
  const std::string image = "the " + std::string(format) + " image is " + std::to_string(width) +
                            "x" + std::to_string(height);
  if (width == 0 || height == 0) return invalid_argument(image + ": it has no pixels");
  if (width > limits.max_side || height > limits.max_side)
    return invalid_argument(image + ", the limit of a side is " + std::to_string(limits.max_side));
  if (width * height > limits.max_pixels)
    return invalid_argument(image + " = " + std::to_string(width * height) +
                            " pixels, the limit is " + std::to_string(limits.max_pixels));
  const auto [shorter, longer] = std::minmax(width, height);
  if (longer > shorter * limits.max_side_ratio)
    return invalid_argument(image + ": the ratio of its sides is " +
                            std::to_string((longer + shorter - 1) / shorter) + ", the limit is " +
                            std::to_string(limits.max_side_ratio));
  return {};
}

Image blank_image(std::uint64_t width, std::uint64_t height) {
  Image image{static_cast<std::int32_t>(width), static_cast<std::int32_t>(height), {}};
  image.rgb.resize(static_cast<std::size_t>(3 * width * height));
  return image;
}

}  // namespace troupe
